//! Derives from a call which pages the kernel populates for it without reporting them.

use crate::trace::{Call, EventKind, FutureLock, Layouts, PopulateCause, Syscall, mmap_length};

const PAGE: u64 = 4096;

const PROT_ANY: u64 = 7;
const MAP_LOCKED: u64 = 0x2000;
const MAP_POPULATE: u64 = 0x8000;
const MAP_NONBLOCK: u64 = 0x1_0000;
const MLOCK_ONFAULT: u64 = 1;
const MCL_CURRENT: u64 = 1;
const MCL_ONFAULT: u64 = 4;
const MADV_POPULATE_READ: u64 = 22;
const MADV_POPULATE_WRITE: u64 = 23;

/// The ranges that a call populated. `before` is the layout before the call, `after` with it.
pub(super) fn derived(
    call: &Syscall,
    pid: u32,
    break_before: Option<u64>,
    after: &Layouts,
) -> Vec<EventKind> {
    if !call.ok() {
        return Vec::new();
    }
    let [first, second, third, flags, ..] = call.args;
    let result = call.result as u64;
    let range = |start: u64, end: u64, cause| {
        let (start, end) = (start / PAGE * PAGE, end.next_multiple_of(PAGE));
        if start < end { vec![EventKind::Populate { start, len: end - start, cause }] } else { Vec::new() }
    };
    match call.call {
        Call::Mmap if third & PROT_ANY == 0 => Vec::new(),
        // Not even `MAP_POPULATE` populates such memory.
        Call::Mmap if after.future_lock(pid) == FutureLock::OnFault => Vec::new(),
        Call::Mmap if flags & MAP_LOCKED != 0 || after.future_lock(pid) == FutureLock::Now => {
            range(result, result + mmap_length(call), PopulateCause::MapLocked)
        }
        Call::Mmap if flags & (MAP_POPULATE | MAP_NONBLOCK) == MAP_POPULATE => {
            range(result, result + mmap_length(call), PopulateCause::MapPopulate)
        }
        Call::Brk if after.future_lock(pid) == FutureLock::Now => match break_before {
            Some(old) if old < result => range(old.next_multiple_of(PAGE), result, PopulateCause::MapLocked),
            _ => Vec::new(),
        },
        Call::Mlock => range(first, first.saturating_add(second), PopulateCause::Mlock),
        Call::Mlock2 if third & MLOCK_ONFAULT == 0 => {
            range(first, first.saturating_add(second), PopulateCause::Mlock)
        }
        Call::Mlockall if first & MCL_CURRENT != 0 && first & MCL_ONFAULT == 0 => after
            .mappings(pid)
            .flat_map(|mapping| range(mapping.start, mapping.end, PopulateCause::Mlock))
            .collect(),
        Call::Madvise if third == MADV_POPULATE_READ => {
            range(first, first + second, PopulateCause::PopulateRead)
        }
        Call::Madvise if third == MADV_POPULATE_WRITE => {
            range(first, first + second, PopulateCause::PopulateWrite)
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
