//! Memory maps of the crate `limine` (boot loader Limine).
#![forbid(unsafe_code)]

use limine::memory_map::{Entry, EntryType};
use quire::addr::PhysAddr;

use crate::MemoryMap;

/// The usable memory of `MemoryMapResponse::entries`, without what the boot loader still uses ([`reclaimable`]).
pub fn memory_map(entries: &[&Entry]) -> MemoryMap {
    collect(entries, EntryType::USABLE)
}

/// The memory that the boot loader gives up. A kernel may use it once it has read all responses, and runs on
/// page tables and a stack of its own. It announces this memory at start-up
/// ([`PageAllocator::with_later`](quire::page_alloc::PageAllocator::with_later)), and adds its
/// [`whole_blocks`](MemoryMap::whole_blocks) later.
pub fn reclaimable(entries: &[&Entry]) -> MemoryMap {
    collect(entries, EntryType::BOOTLOADER_RECLAIMABLE)
}

/// Memory of this kind only: entries of kinds that no kernel may use can overlap others.
fn collect(entries: &[&Entry], kind: EntryType) -> MemoryMap {
    let mut map = MemoryMap::new();
    let wanted = entries.iter().filter(|entry| entry.entry_type == kind);
    wanted.for_each(|entry| map.add(PhysAddr(entry.base), entry.length));
    let taken = entries.iter().filter(|entry| entry.entry_type != kind);
    taken.for_each(|entry| map.reserve(PhysAddr(entry.base), entry.length));
    map
}
