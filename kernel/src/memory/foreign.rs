//! The memory of another process: the running task borrows its address space.

use alloc::sync::Arc;

use quire::addr::VirtAddr;

use super::manager::Space;
use super::user::UserMemory;
use crate::errno::Errno;
use crate::task::sched;

/// Copies from another address space, as its own program could read it.
///
/// # Errors
/// [`Errno::EFAULT`] where the program itself could not read.
pub fn read(space: &Arc<Space>, from: VirtAddr, to: &mut [u8]) -> Result<(), Errno> {
    let task = sched::current();
    // This handle keeps the task's own address space alive for the callers, which have references to it.
    let own = task.space_handle();
    task.replace_space(space.clone());
    let done = UserMemory::of(space).read(from, to);
    match own {
        Some(own) => task.replace_space(own),
        None => task.leave_space(),
    }
    done
}
