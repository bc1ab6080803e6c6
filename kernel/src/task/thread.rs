//! A task: what is scheduled. Several can be threads of one process.

use alloc::sync::Arc;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use quire::addr::VirtAddr;
use x86_64::registers::model_specific::FsBase;

use super::affinity::AllowedCpus;
use super::nodes::TaskNodes;
use super::process::{Name, Process};
use super::rseq::Rseq;
use super::signal::{self, own::OwnSignals};
use super::{switch, table};
use crate::cpu::area;
use crate::cpu::fpu::FpuState;
use crate::cpu::registers::Registers;
use crate::errno::Errno;
use crate::memory::manager::{Space, paging};
use crate::memory::stacks::KernelStack;
use crate::observe::usage::Usage;
use crate::sync::Mutex;
use crate::time;

/// What a program's thread has in the processor while it runs.
#[derive(Clone)]
pub struct UserContext {
    /// The general registers, as the last trap or call stored them.
    pub registers: Registers,
    /// The vector registers, while the task does not run.
    pub fpu: FpuState,
    /// The base of thread-local storage.
    pub fs_base: VirtAddr,
    /// The address of the last fault that sent a signal.
    pub fault_address: u64,
}

impl UserContext {
    /// What a program starts with.
    pub fn new(registers: Registers) -> Self {
        Self { registers, fpu: FpuState::new(), fs_base: VirtAddr(0), fault_address: 0 }
    }

    /// All registers were changed: the faster return from a system call, which loses two, does not fit. An
    /// instruction pointer that no program can have would fault in the kernel, so it becomes 0.
    pub fn make_full_return(&mut self) {
        self.registers.vector = 0;
        if self.registers.rip >= paging().user_range().end.0 {
            self.registers.rip = 0;
        }
    }
}

/// See [`Task::attention`].
const SIGNAL: u8 = 1;
const DYING: u8 = 2;
const RSEQ: u8 = 4;
const FORBIDDEN: u8 = 8;
/// No call was interrupted.
const NO_CALL: u64 = u64::MAX;
/// The call waits without an end.
const NO_END: u64 = u64::MAX;

/// A task.
pub struct Task {
    /// From which nodes its memory comes.
    pub nodes: TaskNodes,
    /// On which CPUs its program may run.
    pub allowed: AllowedCpus,
    /// Its restartable sequences.
    pub rseq: Rseq,
    /// The process that it belongs to.
    pub process: Arc<Process>,
    /// See `super::sched`.
    pub(super) state: AtomicU8,
    pub(super) on_cpu: AtomicBool,
    pub(super) queued_on: AtomicU32,
    pub(super) next_in_queue: UnsafeCell<Option<Arc<Task>>>,
    pub(super) stack_pointer: UnsafeCell<u64>,
    #[expect(dead_code, reason = "freed with the task")]
    stack: Option<KernelStack>,
    user: UnsafeCell<UserContext>,
    space: UnsafeCell<Option<Arc<Space>>>,
    /// Why the task must not return to its program at once.
    attention: AtomicU8,
    /// Signals to the task, and which it blocks.
    pub signals: OwnSignals,
    /// What it has used.
    pub usage: Usage,
    /// The name of a thread that is not the first one of its process.
    own_name: Mutex<Name>,
    /// The number of the call that a signal interrupted.
    interrupted_call: AtomicU64,
    /// The program is about to make an interrupted call again: that one keeps its end.
    repeats_call: AtomicBool,
    /// When the call in which it is must end; [`NO_END`] for never.
    call_end: AtomicU64,
    /// Where a new task stores its number before its program runs; 0 for nowhere.
    pub(super) store_child_id_at: AtomicU64,
    /// Zeroed, and its futex woken, when the task ends (`set_tid_address(2)`); 0 for none.
    pub clear_child_tid: AtomicU64,
    /// The list of robust futexes (`set_robust_list(2)`); 0 for none.
    pub robust_list: AtomicU64,
    /// See `super::owned_futex`.
    pub(super) owner_state: AtomicU8,
    /// The last field: the end of the machine's work waits until no number is in use, and then no memory of a task is.
    number: NumberInUse,
}

// SAFETY: X3, X4: `stack_pointer`, `user` and `space` are used by the CPU that runs the task, or before it
// first runs; `next_in_queue` under the lock of the queue that the task is in.
unsafe impl Send for Task {}
// SAFETY: X3, X4: these fields have one user at a time, as for `Send`; all else is atomic or immutable.
unsafe impl Sync for Task {}

impl Task {
    /// A task that begins in `start`, with a stack of its own. It is not scheduled yet.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`], [`Errno::EAGAIN`] when no number is free.
    pub fn new(
        process: Arc<Process>,
        id: u32,
        user: UserContext,
        space: Option<Arc<Space>>,
        start: extern "C" fn() -> !,
    ) -> Result<Arc<Self>, Errno> {
        let stack = KernelStack::new()?;
        // SAFETY: X4: the stack is new, and ends at a multiple of 16.
        let stack_pointer = unsafe { switch::prepare(stack.end(), start) };
        Ok(Arc::new(Self::with_stack(process, id, user, space, stack_pointer, Some(stack))))
    }

    /// Its number (`gettid(2)`); the first task of a process has the process's.
    #[inline]
    pub fn id(&self) -> u32 {
        self.number.0.load(Ordering::Relaxed)
    }

    /// Gives it another number, as `super::table` does when it executes a program.
    pub(super) fn set_id(&self, id: u32) {
        self.number.0.store(id, Ordering::Relaxed);
    }

    /// The instruction and the frame pointer with which it goes on, unless it runs. For a panic, when no CPU switches.
    pub(super) fn waits_at(&self) -> Option<[u64; 2]> {
        let is_away = !self.on_cpu.load(Ordering::Acquire);
        // SAFETY: X4: it is on no CPU, so its stack pointer was stored.
        is_away.then(|| unsafe { switch::goes_on_at(*self.stack_pointer.get()) })
    }

    /// The task that the running code becomes, on the stack on which it runs: each CPU's idle task.
    pub fn idle(process: Arc<Process>) -> Arc<Self> {
        let user = UserContext::new(Registers::default());
        let task = Self::with_stack(process, 0, user, None, 0, None);
        task.on_cpu.store(true, Ordering::Relaxed);
        Arc::new(task)
    }

    #[inline(never)]
    fn with_stack(
        process: Arc<Process>,
        id: u32,
        user: UserContext,
        space: Option<Arc<Space>>,
        stack_pointer: u64,
        stack: Option<KernelStack>,
    ) -> Self {
        Self {
            nodes: TaskNodes::default(),
            allowed: AllowedCpus::default(),
            rseq: Rseq::default(),
            process,
            state: AtomicU8::new(0),
            on_cpu: AtomicBool::new(false),
            queued_on: AtomicU32::new(area::cpu_id().0),
            next_in_queue: UnsafeCell::new(None),
            stack_pointer: UnsafeCell::new(stack_pointer),
            stack,
            user: UnsafeCell::new(user),
            space: UnsafeCell::new(space),
            attention: AtomicU8::new(0),
            signals: OwnSignals::default(),
            usage: Usage::default(),
            own_name: Mutex::new([0; 16]),
            interrupted_call: AtomicU64::new(NO_CALL),
            repeats_call: AtomicBool::new(false),
            call_end: AtomicU64::new(NO_END),
            store_child_id_at: AtomicU64::new(0),
            clear_child_tid: AtomicU64::new(0),
            robust_list: AtomicU64::new(0),
            owner_state: AtomicU8::new(0),
            number: NumberInUse(AtomicU32::new(id)),
        }
    }

    /// Its name. That of the first thread is the process's.
    pub fn name(&self) -> Name {
        if self.id() == self.process.id { self.process.identity.lock().name } else { *self.own_name.lock() }
    }

    /// Gives it a name.
    pub fn set_name(&self, name: Name) {
        if self.id() == self.process.id {
            self.process.identity.lock().name = name;
        } else {
            *self.own_name.lock() = name;
        }
    }

    /// Where the program's registers stand.
    pub fn registers(&self) -> *mut Registers {
        // No reference is made: the processor stores there while a program runs.
        // SAFETY: X3: the pointer stays inside the task.
        unsafe { &raw mut (*self.user.get()).registers }
    }

    /// The running task's call, while it is served: its number, its arguments, and the program's stack and instruction
    /// pointers.
    pub fn call_words(&self) -> [u64; 9] {
        debug_assert!(core::ptr::eq(self, super::sched::current_ref()));
        // SAFETY: X3: the task is the running one, and its program does not run.
        let of = unsafe { &(*self.user.get()).registers };
        [of.rax, of.rdi, of.rsi, of.rdx, of.r10, of.r8, of.r9, of.rsp, of.rip]
    }

    /// The program's state. The running task reads and changes its own, while its program does not run.
    ///
    /// # Safety
    /// The task is the running one, or does not run yet, and no other reference to the state is in use.
    #[expect(clippy::mut_from_ref, reason = "the contract makes it the only reference")]
    pub unsafe fn user(&self) -> &mut UserContext {
        // SAFETY: X3: the caller promises that this is the only use.
        unsafe { &mut *self.user.get() }
    }

    /// The running task's own address space.
    ///
    /// # Panics
    /// For a task of the kernel, which has none.
    pub fn space(&self) -> &Space {
        debug_assert!(core::ptr::eq(self, super::sched::current_ref()));
        // SAFETY: X3: only the task itself changes it, in `replace_space` and `leave_space`, which are called
        // where no reference is live.
        unsafe { (*self.space.get()).as_deref() }.expect("a program's task has an address space")
    }

    /// A handle on the running task's own address space.
    pub fn space_handle(&self) -> Option<Arc<Space>> {
        // SAFETY: X3: only the task itself changes it, and it runs this code.
        unsafe { (*self.space.get()).clone() }
    }

    /// The address space that the CPU loads for this task.
    ///
    /// # Safety
    /// The caller switches to or from the task.
    pub(super) unsafe fn space_to_load(&self) -> Option<&Space> {
        // SAFETY: X3: the task runs on this CPU, or does not run.
        unsafe { (*self.space.get()).as_deref() }
    }

    /// Gives the running task another address space and loads it. The old one goes with its last task.
    pub fn replace_space(&self, new: Arc<Space>) {
        // SAFETY: X3: the task is the running one, and its callers hold no reference to the old address
        // space.
        let slot = unsafe { &mut *self.space.get() };
        match slot.as_deref() {
            Some(old) => old.switch_to(&new),
            None => new.switch_in(),
        }
        // Its end may switch tasks, and a switch loads what the slot names: the new one by then.
        let gone = slot.replace(new);
        drop(gone);
    }

    /// Takes the address space from the running task, which never returns to its program.
    pub fn leave_space(&self) {
        // SAFETY: X3: the task is the running one, and its callers hold no reference to the old address
        // space.
        let slot = unsafe { &mut *self.space.get() };
        if let Some(space) = slot.take() {
            space.switch_out();
        }
    }

    /// Sets the base of thread-local storage of the running task, an address of a program.
    pub fn set_fs_base(&self, base: VirtAddr) {
        // SAFETY: X3: the task is the running one, and its program does not run.
        unsafe { self.user().fs_base = base };
        load_fs_base(base);
    }

    /// The task ends as soon as it would return to its program. It is woken if it sleeps, and interrupted if its program
    /// runs.
    pub fn kill(self: &Arc<Self>) {
        self.attention.fetch_or(DYING, Ordering::SeqCst);
        super::sched::interrupt(self);
    }

    /// Whether the task ends instead of returning to its program.
    #[inline]
    pub fn is_dying(&self) -> bool {
        self.attention.load(Ordering::Relaxed) & DYING != 0
    }

    /// Whether the task must not return to its program at once.
    #[inline]
    pub fn needs_attention(&self) -> bool {
        self.attention.load(Ordering::Relaxed) != 0
    }

    /// A signal was sent to the task or its process: it looks, wherever it runs or sleeps.
    pub fn signal_arrived(self: &Arc<Self>) {
        self.set_signal_flag();
        super::sched::interrupt(self);
    }

    /// As [`Self::signal_arrived`], for the running task.
    pub fn set_signal_flag(&self) {
        self.attention.fetch_or(SIGNAL, Ordering::SeqCst);
    }

    /// The running task is about to look.
    pub fn clear_signal_flag(&self) {
        self.attention.fetch_and(!SIGNAL, Ordering::SeqCst);
    }

    /// The task has left its CPU, or begins to run: its program leaves its restartable sequence.
    #[inline]
    pub fn set_rseq_flag(&self) {
        self.attention.fetch_or(RSEQ, Ordering::SeqCst);
    }

    /// Whether the running task is marked so, and nothing else keeps it from its program.
    pub fn needs_rseq_alone(&self) -> bool {
        self.attention.load(Ordering::Relaxed) == RSEQ
    }

    /// Whether the running task is marked so.
    pub fn has_rseq_flag(&self) -> bool {
        self.attention.load(Ordering::Relaxed) & RSEQ != 0
    }

    /// The running task is about to obey the mark.
    pub fn take_rseq_flag(&self) {
        self.attention.fetch_and(!RSEQ, Ordering::SeqCst);
    }

    /// The CPUs have changed on which the task's program may run: it looks, wherever it runs or sleeps.
    pub fn cpus_changed(self: &Arc<Self>) {
        self.attention.fetch_or(FORBIDDEN, Ordering::SeqCst);
        super::sched::interrupt(self);
    }

    /// Whether the running task must look whether it may stay on its CPU, or ends.
    pub fn must_leave(&self) -> bool {
        self.attention.load(Ordering::SeqCst) & (FORBIDDEN | DYING) != 0
    }

    /// Whether the running task must look, once.
    pub fn take_cpus_changed(&self) -> bool {
        self.attention.load(Ordering::Relaxed) & FORBIDDEN != 0
            && self.attention.fetch_and(!FORBIDDEN, Ordering::SeqCst) & FORBIDDEN != 0
    }

    /// Whether a sleep of the running task ends early.
    pub fn is_interrupted(&self) -> bool {
        let attention = self.attention.load(Ordering::SeqCst);
        let looks = || self.process.stopped.load(Ordering::Acquire) || signal::deliver::ready(self) != 0;
        attention & DYING != 0 || attention & SIGNAL != 0 && looks()
    }

    /// The running task begins a call.
    #[inline]
    pub fn begin_call(&self) {
        if self.repeats_call.load(Ordering::Relaxed) {
            self.repeats_call.store(false, Ordering::Relaxed);
        } else {
            self.call_end.store(NO_END, Ordering::Relaxed);
        }
    }

    /// Until when the running task's call may wait, if it may wait so many nanoseconds in all: a call that is made again
    /// after an interruption does not begin anew.
    pub fn call_end(&self, ns: u64) -> u64 {
        if !self.has_call_end() {
            self.set_call_end(time::now_ns().saturating_add(ns));
        }
        self.call_end.load(Ordering::Relaxed)
    }

    /// The running task's call waits no longer than until this time.
    pub fn set_call_end(&self, end: u64) {
        self.call_end.store(end, Ordering::Relaxed);
    }

    /// Whether the last call waited no longer than until some time.
    pub fn has_call_end(&self) -> bool {
        self.call_end.load(Ordering::Relaxed) != NO_END
    }

    /// Whether the next call is the last one again.
    pub fn set_repeats_call(&self, repeats: bool) {
        self.repeats_call.store(repeats, Ordering::Relaxed);
    }

    /// Remembers that the running task's call was interrupted.
    pub fn set_interrupted_call(&self, number: u64) {
        self.interrupted_call.store(number, Ordering::Relaxed);
    }

    /// The number of the call that was interrupted, once.
    pub fn take_interrupted_call(&self) -> Option<u64> {
        let number = self.interrupted_call.swap(NO_CALL, Ordering::Relaxed);
        (number != NO_CALL).then_some(number)
    }
}

/// Loads a base of thread-local storage.
pub(super) fn load_fs_base(base: VirtAddr) {
    // The crate knows addresses of 48 bits alone, and programs may have 57.
    // SAFETY: X7: the calls that set a base refuse one that is no program's, so the processor takes it.
    FsBase::write(unsafe { x86_64::VirtAddr::new_unsafe(base.0) });
}

/// Gives the number of a task back.
struct NumberInUse(AtomicU32);

impl Drop for NumberInUse {
    fn drop(&mut self) {
        table::release(*self.0.get_mut());
    }
}
