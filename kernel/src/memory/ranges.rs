//! Which memory Quire gets.

use quire::addr::PhysAddr;
use quire_interop::MemoryMap;

use super::layout::{self, KERNEL_BASE};
use crate::boot::start_info::BootInfo;
use crate::cpu::topology;

/// The first MiB has the start info, the firmware's data and the video memory.
const LOW_MEMORY: u64 = 1 << 20;

/// All usable memory but what is in use: the first MiB, the kernel's image and the initial RAM disk.
pub fn manageable(info: BootInfo) -> MemoryMap {
    let mut map = MemoryMap::new();
    info.usable_memory().for_each(|range| map.add(range.start, range.bytes));
    map.reserve(PhysAddr(0), LOW_MEMORY);
    let image = layout::image();
    map.reserve(PhysAddr(image.start - KERNEL_BASE), image.end - image.start);
    if let Some(initrd) = info.initrd() {
        map.reserve(initrd.start, initrd.bytes);
    }
    for memory in topology::get().memory() {
        map.set_node(memory.start, memory.bytes, memory.node);
    }
    map
}
