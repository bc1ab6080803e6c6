//! Which memory Quire gets.

use quire::addr::PhysAddr;
use quire::limits::FRAME_SIZE;
use quire_interop::MemoryMap;

use super::layout::{self, KERNEL_BASE};
use crate::boot::start_info::BootInfo;
use crate::boot::{tables, trampoline};
use crate::cpu::{area, topology};

/// All usable memory but what the kernel uses by itself. The code and the tables that entered the kernel are
/// not used any more, and neither are statics for more CPUs or more memory than this machine has.
#[inline(never)]
pub fn manageable(info: BootInfo) -> MemoryMap {
    // Copied from constants: stores of its fields one by one are six hundred instructions.
    let mut map = const { MemoryMap::new() };
    info.usable_memory().for_each(|range| map.add(range.start, range.bytes));
    // The firmware's vectors and data.
    map.reserve(PhysAddr(0), FRAME_SIZE);
    map.reserve(PhysAddr(trampoline::PAGE), FRAME_SIZE);
    for kept in info.kept().into_iter().chain(info.initrd()) {
        map.reserve(kept.start, kept.bytes);
    }
    let phys = |addr: u64| PhysAddr(addr - KERNEL_BASE);
    for part in [layout::text(), layout::rodata(), layout::data(), layout::stack()] {
        map.reserve(phys(part.start), part.end - part.start);
    }
    for unused in [tables::give_up_unused(), area::unused()] {
        map.add(phys(unused.start), unused.end - unused.start);
    }
    for memory in topology::get().memory() {
        map.set_node(memory.start, memory.bytes, memory.node);
    }
    map
}
