//! Memory maps of the crate `bootloader_api` (boot loader `bootloader`).
#![forbid(unsafe_code)]

use bootloader_api::info::{MemoryRegion, MemoryRegionKind};
use quire::addr::PhysAddr;

use crate::MemoryMap;

/// The usable memory of `BootInfo::memory_regions`. The boot loader has excluded the kernel's image, its own page tables and
/// the RAM disk.
///
/// The map may have physical frame 0. A kernel whose direct map puts it at address zero reserves it, since a pointer to it
/// would be null.
pub fn memory_map(regions: &[MemoryRegion]) -> MemoryMap {
    let bytes = |region: &MemoryRegion| region.end.saturating_sub(region.start);
    let (usable, taken) = (
        |region: &&MemoryRegion| region.kind == MemoryRegionKind::Usable,
        |region: &&MemoryRegion| region.kind != MemoryRegionKind::Usable,
    );
    let mut map = MemoryMap::new();
    regions.iter().filter(usable).for_each(|region| map.add(PhysAddr(region.start), bytes(region)));
    regions.iter().filter(taken).for_each(|region| map.reserve(PhysAddr(region.start), bytes(region)));
    map
}
