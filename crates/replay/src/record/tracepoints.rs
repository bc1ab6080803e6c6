//! The tracepoints of the privileged tier, and what goes with them.

use std::ffi::CString;

use rustix::fs::MemfdFlags;

use super::locks::{self, LockTracepoints};
use super::parse::Fields;
use super::perf::{Config, Source, Wanted};
use super::tracefs::{Tracefs, Tracepoint};
use super::{RecordError, abi, filters};

/// No record was lost with this size at over a million faults a second.
pub(super) const PRIVILEGED_RING: usize = 32 << 20;

/// The size that an ordinary user may lock on most machines.
pub(super) const USER_RING: usize = 4 << 20;

/// Addresses of user memory are below this, whatever the number of page-table levels; the kernel's are far above.
pub(super) const USER_END: u64 = 1 << 56;

/// The device of files that no path leads to, as the kernel has it: each `memfd` and each shared anonymous mapping is one of it.
pub(super) fn nameless_device() -> Option<u32> {
    let file = rustix::fs::memfd_create("quire", MemfdFlags::CLOEXEC).ok()?;
    let device = rustix::fs::fstat(file).ok()?.st_dev;
    // The kernel's own device number has 20 bits of minor number.
    Some(rustix::fs::major(device) << 20 | rustix::fs::minor(device))
}

/// Adds the tracepoints of the privileged tier. Returns their fields, and whether fault-around is among them.
pub(super) fn all(tracefs: &Tracefs, wanted: &mut Vec<Wanted>) -> Result<(Fields, bool), RecordError> {
    let fault_user = tracefs.tracepoint("exceptions/page_fault_user")?;
    let fault_kernel = tracefs.tracepoint("exceptions/page_fault_kernel")?;
    let enter = tracefs.tracepoint("raw_syscalls/sys_enter")?;
    let leave = tracefs.tracepoint("raw_syscalls/sys_exit")?;
    let new_task = tracefs.tracepoint("task/task_newtask")?;
    // This tracepoint is newer; a kernel without it still reports everything else.
    let map_pages = tracefs.tracepoint("filemap/mm_filemap_map_pages").ok();
    let dropped = tracefs.tracepoint("filemap/mm_filemap_delete_from_page_cache").ok();
    let dropped = dropped.zip(nameless_device().map(|device| format!("s_dev == {device}")));
    let locks = LockTracepoints::find(tracefs);
    let addresses = format!("address < {USER_END}");
    let (entries, exits) = filters::of_calls();
    let old_mmap = format!("id == {}", abi::OLD_MMAP);
    let mut add = |source, tracepoint: &Tracepoint, filter: Option<&str>, what| {
        let filter = filter.map(|filter| CString::new(filter).expect("filters have no zero bytes"));
        wanted.push(Wanted { source, config: Config::Tracepoint { id: tracepoint.id, filter }, what });
    };
    add(Source::FaultUser, &fault_user, Some(&addresses), "faults of the program");
    add(Source::FaultKernel, &fault_kernel, Some(&addresses), "faults from kernel mode");
    add(Source::Enter, &enter, Some(&entries), "system calls");
    add(Source::EnterOldMmap, &enter, Some(&old_mmap), "system calls");
    add(Source::Leave, &leave, Some(&exits), "system calls");
    add(Source::NewTask, &new_task, None, "clone flags");
    if let Some(map_pages) = &map_pages {
        add(Source::MapPages, map_pages, None, "fault-around");
    }
    if let Some((dropped, filter)) = &dropped {
        add(Source::Dropped, dropped, Some(filter), "pages that leave files");
    }
    if let Some(locks) = &locks {
        add(Source::Locked, &locks.taken, Some(locks::TAKEN), locks::WHAT);
        add(Source::Unlocked, &locks.released, Some(locks::RELEASED), locks::WHAT);
    }
    let map_field = |name: &str| map_pages.as_ref().map(|tracepoint| tracepoint.field(name)).transpose();
    let dropped_field =
        |name: &str| dropped.as_ref().map(|(tracepoint, _)| tracepoint.field(name)).transpose();
    let fields = Fields {
        fault_address: fault_user.field("address")?,
        fault_error_code: fault_user.field("error_code")?,
        enter_id: enter.field("id")?,
        enter_args: enter.field("args")?,
        leave_id: leave.field("id")?,
        leave_result: leave.field("ret")?,
        map_device: map_field("s_dev")?.unwrap_or_default(),
        map_inode: map_field("i_ino")?.unwrap_or_default(),
        map_first: map_field("index")?.unwrap_or_default(),
        map_last: map_field("last_index")?.unwrap_or_default(),
        dropped_device: dropped_field("s_dev")?.unwrap_or_default(),
        dropped_inode: dropped_field("i_ino")?.unwrap_or_default(),
        task_flags: new_task.field("clone_flags")?,
        locked_mm: locks.as_ref().map(LockTracepoints::taken_mm).transpose()?.unwrap_or_default(),
        unlocked_mm: locks.as_ref().map(LockTracepoints::released_mm).transpose()?.unwrap_or_default(),
    };
    Ok((fields, map_pages.is_some()))
}

#[cfg(test)]
mod tests;
