//! Running another program in a process (`execve(2)`).

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::{self, AcqRel, Release};

use linux_raw_sys::general as abi;
use quire::limits::FRAME_SIZE;

use super::credentials::{ALL, Credentials};
use super::exit::{end_vfork, leave_program};
use super::process::{Identity, Process};
use super::thread::{Task, UserContext};
use super::{group, limits, owned_futex, table, timers};
use crate::cpu::user_mode::initial_registers;
use crate::errno::Errno;
use crate::files::mounts;
use crate::ipc;
use crate::memory::manager::{Space, manager};
use crate::observe::{ProgramLayout, SETTINGS, program_ends};
use crate::program::image::{self, ProgramFile};
use crate::program::{script, stack};

/// The arguments and the environment of a program.
#[derive(Clone, Default, Debug)]
pub struct Strings {
    /// Without the zero bytes at their ends.
    pub arguments: Vec<Vec<u8>>,
    /// `NAME=value`, likewise.
    pub environment: Vec<Vec<u8>>,
}

/// The right to execute a program, which one task of a process has at a time. It ends the others: two that wait for each
/// other's end would wait for ever.
struct Execution<'p>(&'p Process);

impl<'p> Execution<'p> {
    /// Waits while another task of the process has the right.
    ///
    /// # Errors
    /// [`Errno::EINTR`]: the other task executes its program, and this one must end.
    fn begin(task: &'p Task) -> Result<Self, Errno> {
        let process = &task.process;
        let is_first = process.child_events.wait_uninterruptible(|| {
            let is_first = !process.is_executing.swap(true, AcqRel);
            (is_first || task.is_dying()).then_some(is_first)
        });
        if is_first { Ok(Self(process)) } else { Err(Errno::EINTR) }
    }
}

impl Drop for Execution<'_> {
    fn drop(&mut self) {
        self.0.is_executing.store(false, Release);
        self.0.child_events.wake_all();
    }
}

/// Replaces the running task's program by a file, or by what a script asks for. The old one is untouched if this fails.
///
/// # Errors
/// As `execve(2)`.
pub fn execute(task: &Arc<Task>, file: ProgramFile, strings: Strings) -> Result<(), Errno> {
    limits::check_execution(&task.process)?;
    let (file, mut strings) = script::resolve(file, strings)?;
    if strings.arguments.is_empty() {
        // A program may rely on its first argument.
        strings.arguments.push(Vec::new());
    }
    let executable = file.place.path()?;
    let credentials = credentials_for(&task.process, &file);
    let _execution = Execution::begin(task)?;
    program_ends(&task.process);
    let old = task.space_handle();
    task.replace_space(Arc::new(manager().new_mm()?));
    group::apply(&task.process, task.space());
    match load(task.space(), &file, &strings, &credentials) {
        Ok((context, layout)) => {
            begin(task, old, context, identity(file, executable), credentials);
            ipc::collect();
            *task.process.account.program.lock() = layout;
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

/// What a process has that runs a file: with set-user-ID and set-group-ID the file's user and group, unless the process
/// wants no new ones.
fn credentials_for(process: &Process, file: &ProgramFile) -> Credentials {
    let attributes = file.place.node().attributes();
    let gives = !process.account.no_new_privs.load(Ordering::Relaxed)
        && !mounts::has_flag(&file.place, abi::MS_NOSUID);
    let own = |bit: u32, id: u32| Some(id).filter(|_| gives && attributes.mode & bit != 0);
    let (user, group) = (own(abi::S_ISUID, attributes.uid), own(abi::S_ISGID, attributes.gid));
    let old = process.credentials();
    let rights = if gives { ALL } else { old.permitted };
    let new = old.for_program(user, group);
    Credentials { permitted: new.permitted & rights, effective: new.effective & rights, ..new }
}

/// Maps the program in an empty address space that is loaded. Returns what its first task starts with.
fn load(
    space: &Space,
    file: &ProgramFile,
    strings: &Strings,
    credentials: &Credentials,
) -> Result<(UserContext, ProgramLayout), Errno> {
    let loaded = image::load(space, file)?;
    space.set_mapping_limit(SETTINGS.max_map_count.load(Ordering::Relaxed));
    // As Linux does: the heap begins with a page of its own.
    space.set_brk_start(loaded.program.end.align_up(FRAME_SIZE).ok_or(Errno::ENOMEM)?);
    let layout = stack::build(space, &loaded, strings, &file.path, credentials)?;
    Ok((UserContext::new(initial_registers(loaded.entry, layout.stack)), layout))
}

/// From here on the process runs the new program, alone.
fn begin(
    task: &Arc<Task>,
    old: Option<Arc<Space>>,
    context: UserContext,
    identity: Identity,
    credentials: Credentials,
) {
    let process = &task.process;
    end_other_threads(task);
    leave(task, old);
    table::become_first(task);
    // With the number that it has from now on.
    owned_futex::begin(task);
    // First, so that a caller that may not look at the new program does not find its memory.
    let is_same_user = {
        let old = process.credentials();
        (old.user(), old.group()) == (credentials.user(), credentials.group())
    };
    let is_secure = credentials.is_secure();
    process.set_credentials(credentials);
    drop(process.space.replace(task.space_handle()));
    // After that: what the old program did not show is gone.
    process.account.is_dumpable.store(is_same_user && !is_secure, Ordering::Relaxed);
    if is_secure {
        process.account.death_signal.store(0, Ordering::Relaxed);
    }
    // The process may have joined another group since the space was made.
    group::apply(process, task.space());
    end_vfork(process);
    process.exit_signal.store(abi::SIGCHLD, Ordering::Relaxed);
    context.fpu.restore();
    task.set_fs_base(context.fs_base);
    // SAFETY: X3: the task is the running one, and its program does not run.
    *unsafe { task.user() } = context;
    task.signals.reset_for_program();
    task.rseq.set(None);
    process.signals.reset_for_program();
    process.barriers.clear();
    process.limits.apply(task.space());
    timers::delete_all(process.id, false);
    process.has_executed.store(true, Ordering::Relaxed);
    drop(process.identity.replace(identity));
    close_files(process);
}

/// The task leaves the memory of its old program as if it ended. It has that of the new one afterwards.
fn leave(task: &Task, old: Option<Arc<Space>>) {
    if let (Some(old), Some(new)) = (old, task.space_handle()) {
        task.replace_space(old);
        leave_program(task);
        task.replace_space(new);
    }
}

/// Closes the descriptors that the new program does not get. Another process that shares them keeps them.
fn close_files(process: &Process) {
    let files = process.files.lock().clone();
    // This process has one reference, and `files` is one.
    if Arc::strong_count(&files) > 2
        && let Ok(own) = files.copy_for_program()
    {
        let shared = core::mem::replace(&mut *process.files.lock(), own);
        drop(shared);
    } else {
        files.close_for_program();
    }
}

fn end_other_threads(task: &Arc<Task>) {
    let process = &task.process;
    process.kill_threads(Some(task));
    process.child_events.wait_uninterruptible(|| (process.threads.lock().len() <= 1).then_some(()));
}

fn identity(file: ProgramFile, executable: Vec<u8>) -> Identity {
    let path = &file.path;
    let base = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    let mut name = [0; 16];
    let length = base.len().min(15);
    name[..length].copy_from_slice(&base[..length]);
    Identity { name, executable, claim: Some(file.claim) }
}
