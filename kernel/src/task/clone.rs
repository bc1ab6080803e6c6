//! New processes and threads.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use linux_raw_sys::general as abi;
use quire::addr::VirtAddr;

use super::credentials::REAL;
use super::process::Process;
use super::thread::{Task, UserContext};
use super::{limits, run, sched, table};
use crate::errno::Errno;
use crate::files::generated::group_of;
use crate::files::process_file;
use crate::memory::forced::Steady;
use crate::memory::list::ReservedList;
use crate::memory::manager::Space;
use crate::memory::user::UserMemory;
use crate::observe::allows_fork;
use crate::userfault;

/// What `clone3(2)` is asked for. Addresses are 0 for none.
#[derive(Clone, Copy, Debug, Default)]
pub struct CloneRequest {
    /// `CLONE_*`.
    pub flags: u64,
    /// The end of the child's stack; the parent's stack pointer if 0.
    pub stack_end: u64,
    /// The signal that the parent gets at the child's end.
    pub exit_signal: u32,
    /// Where the parent stores the child's number (`CLONE_PARENT_SETTID`).
    pub parent_tid: u64,
    /// Where the parent stores the child's descriptor (`CLONE_PIDFD`).
    pub descriptor: u64,
    /// Where the child stores its number or clears it at its end.
    pub child_tid: u64,
    /// The base of the child's thread-local storage (`CLONE_SETTLS`).
    pub tls: u64,
    /// The descriptor of the control group that gets the child (`CLONE_INTO_CGROUP`).
    pub group: u64,
}

const INTO_GROUP: u64 = abi::CLONE_INTO_CGROUP;

const SUPPORTED: u32 = abi::CLONE_VM
    | abi::CLONE_FS
    | abi::CLONE_FILES
    | abi::CLONE_SIGHAND
    | abi::CLONE_PIDFD
    | abi::CLONE_VFORK
    | abi::CLONE_PARENT
    | abi::CLONE_THREAD
    | abi::CLONE_SYSVSEM
    | abi::CLONE_SETTLS
    | abi::CLONE_PARENT_SETTID
    | abi::CLONE_CHILD_CLEARTID
    | abi::CLONE_DETACHED
    | abi::CLONE_UNTRACED
    | abi::CLONE_CHILD_SETTID
    | abi::CLONE_IO;

impl CloneRequest {
    fn has(&self, flag: u32) -> bool {
        self.flags & u64::from(flag) != 0
    }

    /// The combinations that `clone(2)` refuses, and those that the kernel does not have.
    fn check(&self) -> Result<(), Errno> {
        let needs = |flag, other| !self.has(flag) || self.has(other);
        let sound = needs(abi::CLONE_SIGHAND, abi::CLONE_VM) && needs(abi::CLONE_THREAD, abi::CLONE_SIGHAND);
        let is_process = !self.has(abi::CLONE_THREAD) && !self.has(abi::CLONE_DETACHED);
        let sound = sound && (is_process || !self.has(abi::CLONE_PIDFD));
        let known = self.flags & !(u64::from(SUPPORTED) | abi::CLONE_CLEAR_SIGHAND | INTO_GROUP) == 0;
        let clears = self.flags & abi::CLONE_CLEAR_SIGHAND != 0;
        if !(sound && known) || clears && self.has(abi::CLONE_SIGHAND) {
            return Err(Errno::EINVAL);
        }
        // A process is in one group with all its threads.
        let parts = self.has(abi::CLONE_THREAD) && self.flags & INTO_GROUP != 0;
        if parts { Err(Errno::EOPNOTSUPP) } else { Ok(()) }
    }
}

/// Makes a task that returns 0 from the call in which the running task is. Returns its number. With `CLONE_VFORK`,
/// after it has ended or executed a program.
///
/// # Errors
/// As `clone(2)`.
pub fn clone(task: &Task, request: &CloneRequest) -> Result<u64, Errno> {
    request.check()?;
    if request.has(abi::CLONE_SETTLS) && request.tls >= task.space().layout().user.end.0 {
        return Err(Errno::EPERM);
    }
    let files = task.process.files.lock().clone();
    let into_group = || group_of(&*files.get(request.group)?);
    let group = (request.flags & INTO_GROUP != 0).then(into_group).transpose()?;
    let reserved = request.has(abi::CLONE_PIDFD).then(|| files.reserve()).transpose()?;
    if let Some(reserved) = &reserved {
        let number = reserved.number() as u32;
        UserMemory::of(task.space()).write(VirtAddr(request.descriptor), &number.to_le_bytes())?;
    }
    let id = table::take(task.process.credentials().users[REAL], limits::most_tasks(&task.process))?;
    // A number that no task has taken over is given back.
    let new = build(task, request, id).inspect_err(|_| table::release(id))?;
    if request.has(abi::CLONE_PARENT_SETTID) {
        // As in Linux, a bad address is the caller's own problem.
        let _ = UserMemory::of(task.space()).write(VirtAddr(request.parent_tid), &id.to_le_bytes());
    }
    let child = new.process.clone();
    let waits = request.has(abi::CLONE_VFORK) && !request.has(abi::CLONE_THREAD);
    if waits {
        // A thread of a process whose parent waits leaves that as it is.
        child.is_vforked.store(true, Ordering::Release);
    }
    // A child that shares descriptors finds its own there.
    run::launch(new, || {
        match group {
            Some(group) if request.has(abi::CLONE_VM) => group.join_without_memory(&child)?,
            Some(group) => group.join(&child)?,
            None => {}
        }
        if let Some(reserved) = reserved {
            reserved.fill(process_file::open(child.clone(), false), true);
        }
        Ok(())
    })?;
    if waits {
        // The child uses this task's stack. A task that must end needs it no more.
        child.vfork_done.wait_uninterruptible(|| {
            (!child.is_vforked.load(Ordering::Acquire) || task.is_dying()).then_some(())
        });
    }
    Ok(u64::from(id))
}

fn build(task: &Task, request: &CloneRequest, id: u32) -> Result<Arc<Task>, Errno> {
    let space = child_space(task, request)?;
    let is_thread = request.has(abi::CLONE_THREAD);
    let process = if is_thread { task.process.clone() } else { child_process(task, request, id, &space)? };
    let parent = (!is_thread).then(|| parent_of_child(task, request));
    let reserved = Reserved::new(&process, parent.as_deref())?;
    let new = Task::new(process.clone(), id, child_context(task, request), Some(space), run::task_start)?;
    reserved.keep();
    let child_tid = |flag| if request.has(flag) { request.child_tid } else { 0 };
    new.clear_child_tid.store(child_tid(abi::CLONE_CHILD_CLEARTID), Ordering::Relaxed);
    new.store_child_id_at.store(child_tid(abi::CLONE_CHILD_SETTID), Ordering::Relaxed);
    new.set_name(task.name());
    new.nodes.inherit(&task.nodes);
    new.allowed.inherit(&task.allowed);
    if !request.has(abi::CLONE_VM) {
        new.rseq.set(task.rseq.get());
        new.set_rseq_flag();
    }
    new.signals.inherit(&task.signals, request.has(abi::CLONE_VM) && !request.has(abi::CLONE_VFORK));
    if let Some(parent) = &parent {
        super::exit::adopt(parent, &new.process, ReservedList::push);
    }
    Ok(new)
}

/// Places in the lists that a new task will stand in. They are added to later, where nothing can fail, and several
/// tasks of a process may clone at once. Dropped, it gives the places back.
struct Reserved<'p> {
    process: &'p Process,
    /// That of a new process.
    parent: Option<&'p Process>,
}

impl<'p> Reserved<'p> {
    fn new(process: &'p Process, parent: Option<&'p Process>) -> Result<Self, Errno> {
        if parent.is_some() {
            // Each process may become a child of the first one, when its parent has ended.
            let init = table::process(table::INIT);
            init.map_or(Ok(()), |init| init.children.lock().reserve_for(table::count()))?;
        }
        process.threads.lock().reserve_one()?;
        let reserved = parent.map_or(Ok(()), |parent| parent.children.lock().reserve_one());
        reserved.inspect_err(|_| process.threads.lock().cancel())?;
        Ok(Self { process, parent })
    }

    /// The places will be filled.
    fn keep(self) {
        core::mem::forget(self);
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.process.threads.lock().cancel();
        if let Some(parent) = self.parent {
            parent.children.lock().cancel();
        }
    }
}

fn child_space(task: &Task, request: &CloneRequest) -> Result<Arc<Space>, Errno> {
    if request.has(abi::CLONE_VM) {
        return Ok(task.space_handle().expect("a program's task"));
    }
    if !allows_fork(task.space()) {
        return Err(Errno::ENOMEM);
    }
    let steady = Steady::begin(task.space())?;
    let handlers = userfault::Fork::begin(task.space());
    let child = Arc::new(task.space().fork()?);
    drop(steady);
    handlers.end(&child)?;
    Ok(child)
}

fn parent_of_child(task: &Task, request: &CloneRequest) -> Arc<Process> {
    let own = &task.process;
    if request.has(abi::CLONE_PARENT) { own.parent().unwrap_or_else(|| own.clone()) } else { own.clone() }
}

fn child_process(
    task: &Task,
    request: &CloneRequest,
    id: u32,
    space: &Arc<Space>,
) -> Result<Arc<Process>, Errno> {
    let files = task.process.files.lock().clone();
    let files = match request.has(abi::CLONE_FILES) {
        true => files,
        false => files.copy()?,
    };
    let fs = task.process.fs.lock().clone();
    let fs = if request.has(abi::CLONE_FS) { fs } else { fs.map(|fs| fs.copy()) };
    let signals = task
        .process
        .signals
        .for_child(request.has(abi::CLONE_SIGHAND), request.flags & abi::CLONE_CLEAR_SIGHAND != 0);
    // What a child inherits comes from its maker, whichever process becomes its parent.
    let own = &task.process;
    let process = Process::new(id, Some(own), Some(space.clone()), files, fs, signals);
    let is_sibling = request.has(abi::CLONE_PARENT);
    let signal = if is_sibling { own.exit_signal.load(Ordering::Relaxed) } else { request.exit_signal };
    process.exit_signal.store(signal, Ordering::Relaxed);
    Ok(process)
}

fn child_context(task: &Task, request: &CloneRequest) -> UserContext {
    // SAFETY: X3: the task is the running one, and its program does not run.
    let own = unsafe { task.user() };
    own.fpu.save();
    let mut context = own.clone();
    context.registers.rax = 0;
    if request.stack_end != 0 {
        context.registers.rsp = request.stack_end;
    }
    if request.has(abi::CLONE_SETTLS) {
        context.fs_base = VirtAddr(request.tls);
    }
    context
}

/// `CLONE_CHILD_SETTID`: a new task stores its number in its own memory, before its program runs.
pub fn store_child_id() {
    let task = sched::current_ref();
    let at = task.store_child_id_at.swap(0, Ordering::Relaxed);
    if at != 0 {
        // As in Linux, a bad address is the caller's own problem.
        let _ = UserMemory::of(task.space()).write(VirtAddr(at), &task.id().to_le_bytes());
    }
}
