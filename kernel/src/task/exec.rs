//! Running another program in a process (`execve(2)`).

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use super::exit::end_vfork;
use super::process::Identity;
use super::thread::{Task, UserContext};
use super::timers;
use crate::cpu::user_mode::initial_registers;
use crate::errno::Errno;
use crate::memory::manager::{Space, manager};
use crate::program::{image, script, stack};

/// The arguments and the environment of a program.
#[derive(Clone, Default, Debug)]
pub struct Strings {
    /// Without the zero bytes at their ends.
    pub arguments: Vec<Vec<u8>>,
    /// `NAME=value`, likewise.
    pub environment: Vec<Vec<u8>>,
}

/// Replaces the running task's program. The old one is untouched if this fails.
///
/// # Errors
/// As `execve(2)`.
pub fn execute(task: &Arc<Task>, path: &[u8], strings: Strings) -> Result<(), Errno> {
    let (file, strings) = script::resolve(path, strings)?;
    let old = task.space_handle();
    task.replace_space(Arc::new(manager().new_mm()?));
    match load(task.space(), &file, &strings) {
        Ok(context) => {
            drop(old);
            begin(task, context, identity(&file.path));
            Ok(())
        }
        Err(errno) => {
            match old {
                Some(old) => task.replace_space(old),
                None => task.leave_space(),
            }
            Err(errno)
        }
    }
}

/// Maps the program in an empty address space that is loaded. Returns what its first task starts with.
fn load(space: &Space, file: &image::ProgramFile, strings: &Strings) -> Result<UserContext, Errno> {
    let loaded = image::load(space, file)?;
    space.set_brk_start(loaded.program.end);
    let stack = stack::build(space, &loaded, strings, &file.path)?;
    Ok(UserContext::new(initial_registers(loaded.entry, stack)))
}

/// From here on the process runs the new program, alone.
fn begin(task: &Arc<Task>, context: UserContext, identity: Identity) {
    let process = &task.process;
    end_other_threads(task);
    *process.space.lock() = task.space_handle();
    end_vfork(process);
    context.fpu.restore();
    task.set_fs_base(context.fs_base);
    // SAFETY: the task is the running one, and its program does not run.
    *unsafe { task.user() } = context;
    task.clear_child_tid.store(0, Ordering::Relaxed);
    task.robust_list.store(0, Ordering::Relaxed);
    task.signals.reset_for_program();
    process.signals.reset_for_program();
    timers::delete_all(process.id, false);
    process.has_executed.store(true, Ordering::Relaxed);
    *process.identity.lock() = identity;
    let files = process.files.lock().clone();
    let files = Arc::new(super::sleep_lock::SleepLock::new(files.lock().for_program()));
    *process.files.lock() = files;
}

fn end_other_threads(task: &Arc<Task>) {
    let process = &task.process;
    process.kill_threads(Some(task));
    process.child_events.wait_uninterruptible(|| (process.threads.lock().len() <= 1).then_some(()));
}

fn identity(path: &[u8]) -> Identity {
    let base = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    let mut name = [0; 16];
    let length = base.len().min(15);
    name[..length].copy_from_slice(&base[..length]);
    Identity { name }
}
