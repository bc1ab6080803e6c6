//! The machine's memory: `/proc/meminfo` and its like.

use core::fmt::{self, Write};

use quire_interop::proc::{self, KernelMemory};

use super::{List, commit};
use crate::boot::tables;
use crate::cpu::area;
use crate::errno::Errno;
use crate::memory::layout::STACKS;
use crate::memory::manager::manager;
use crate::memory::stacks;

pub(super) fn add(list: &mut List) {
    list.text("/proc/meminfo", meminfo);
    list.text("/proc/vmstat", vmstat);
    list.text("/proc/zoneinfo", |out| proc::zoneinfo(out, manager()));
    list.text("/proc/buddyinfo", |out| proc::buddyinfo(out, manager()));
    list.text("/proc/pagetypeinfo", |out| proc::pagetypeinfo(out, manager()));
    list.text("/proc/swaps", |out| out.write_str("Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"));
    list.words("/proc/kpagecount", |offset, bytes| {
        proc::read_kpagecount(manager(), offset, bytes).map_err(|_| Errno::EINVAL)
    });
    list.words("/proc/kpageflags", |offset, bytes| {
        proc::read_kpageflags(manager(), offset, bytes).map_err(|_| Errno::EINVAL)
    });
}

fn stack_kib() -> u64 {
    stacks::mapped() * stacks::STACK_BYTES / 1024
}

fn meminfo(out: &mut dyn Write) -> fmt::Result {
    let committed = commit::committed().map_err(|_| fmt::Error)?;
    let kernel = KernelMemory {
        stacks: stack_kib(),
        commit: (commit::limit() * 4, committed * 4),
        per_cpu: (area::count() * area::BYTES / 1024) as u64,
        mappings: ((STACKS.end - STACKS.start) / 1024, stack_kib()),
        direct_map: tables::direct_map_bytes().map(|bytes| bytes / 1024),
        ..KernelMemory::default()
    };
    proc::meminfo(out, manager(), &kernel)
}

fn vmstat(out: &mut dyn Write) -> fmt::Result {
    proc::vmstat(out, manager(), &[("nr_kernel_stack", stack_kib())])
}
