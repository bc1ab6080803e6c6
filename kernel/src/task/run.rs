//! The life of a task: run its program, serve what the program stops for, and end.

use alloc::sync::Arc;

use linux_raw_sys::general as abi;
use quire::addr::VirtAddr;
use quire::error::FaultError;
use quire::filemap::FileKind;
use quire::limits::FRAME_SHIFT;
use quire::vm::vma::VmaFlags;
use quire::vm::{Access, VmaInfo};
use x86_64::instructions::interrupts;

use super::signal::{self, info::SigInfo};
use super::thread::Task;
use super::{coredump, exit, limits, oom, rseq, sched, timers};
use crate::cpu::area;
use crate::cpu::user_mode::{self, Stop};
use crate::errno::Errno;
use crate::observe::usage::{note_fault, note_signal};
use crate::syscall;

/// Where the stack of a program's new task begins.
pub extern "C" fn task_start() -> ! {
    sched::finish_switch();
    interrupts::enable();
    super::clone::store_child_id();
    user_loop();
    exit::finish();
    sched::end_task()
}

/// Runs the program until its task must end.
pub fn user_loop() {
    let task = sched::current_ref();
    loop {
        interrupts::disable();
        if task.needs_attention() || area::this().need_resched() {
            interrupts::enable();
            if task.is_dying() {
                coredump::join(task);
                return;
            }
            attend(task);
            continue;
        }
        // SAFETY: X3: the registers are the running task's, and signal frames and calls change them as a
        // program could.
        match unsafe { user_mode::run(task.registers()) } {
            Stop::SystemCall => syscall::serve(task),
            Stop::PageFault(addr, access) => fault(task, addr, access),
            Stop::Trap(vector) => trap(task, vector),
            Stop::Interrupt => {}
        }
    }
}

/// Does what keeps the task from its program.
fn attend(task: &Task) {
    if task.needs_rseq_alone() && !area::this().need_resched() {
        return rseq::resume(task);
    }
    limits::check_processor_time(&task.process);
    timers::check_processor_time(&task.process);
    signal::deliver::deliver_pending(task);
    if task.take_cpus_changed() {
        sched::leave_forbidden_cpu(task);
    }
    if area::this().need_resched() {
        sched::schedule();
    }
    oom::refill_heap(task);
    if task.has_rseq_flag() {
        rseq::resume(task);
    }
}

/// Lets Quire make the access possible. The program then repeats it.
fn fault(task: &Task, addr: VirtAddr, access: Access) {
    // It ends instead. Its memory may have been discarded: a new page must not take the place of what was there.
    if task.is_dying() {
        return;
    }
    let error = match task.space().fault(addr, access) {
        Ok(outcome) => return note_fault(task, outcome.kind),
        Err(error) => error,
    };
    match error.signal() {
        Some(signal) => {
            note_signal(task);
            // SAFETY: X3: the task is the running one, and its program does not run.
            unsafe { task.user() }.fault_address = addr.0;
            let info = SigInfo::fault(signal.number as u32, signal.code, addr.0);
            let lost = matches!(error, FaultError::Poisoned).then(|| lost_at(task, addr));
            signal::send::force(task, lost.map_or(info, |lost| info.with_lost(lost)));
        }
        // The program repeats the access when there is memory.
        None if matches!(error, FaultError::OutOfMemory) => oom::make_room(addr),
        // The task is dying, or a handler of faults answers.
        None => {}
    }
}

/// How much memory is lost with a page that went bad, as a power of two: a huge page that is mapped whole goes as a whole.
fn lost_at(task: &Task, addr: VirtAddr) -> u8 {
    match task.space().next_vma(addr) {
        Some(VmaInfo { file: Some((FileKind::Huge { order, .. }, _)), flags, .. })
            if !flags.contains(VmaFlags::SPLIT) =>
        {
            order.bytes().ilog2() as u8
        }
        _ => FRAME_SHIFT as u8,
    }
}

/// The signal for a trap of the processor, as Linux has it.
fn trap(task: &Task, vector: u64) {
    // SAFETY: X3: the task is the running one, and its program does not run.
    let rip = unsafe { task.user() }.registers.rip;
    let info = match vector {
        0 => SigInfo::fault(abi::SIGFPE, abi::FPE_INTDIV as i32, rip),
        1 => SigInfo::fault(abi::SIGTRAP, abi::TRAP_TRACE as i32, rip),
        3 => SigInfo::kernel_fault(abi::SIGTRAP),
        6 => SigInfo::fault(abi::SIGILL, abi::ILL_ILLOPN as i32, rip),
        12 => SigInfo::kernel_fault(abi::SIGBUS),
        16 | 19 => SigInfo::fault(abi::SIGFPE, float_code(task, vector), rip),
        17 => SigInfo::fault(abi::SIGBUS, abi::BUS_ADRALN as i32, 0),
        _ => SigInfo::kernel_fault(abi::SIGSEGV),
    };
    signal::send::force(task, info);
}

/// What was wrong with a calculation of x87, or of SSE (vector 19).
fn float_code(task: &Task, vector: u64) -> i32 {
    // SAFETY: X3: the task is the running one, and its program does not run.
    let [x87, sse] = unsafe { task.user() }.fpu.save_exceptions();
    let raised = if vector == 19 { sse } else { x87 };
    let code = match raised {
        raised if raised & 1 != 0 => abi::FPE_FLTINV,
        raised if raised & 4 != 0 => abi::FPE_FLTDIV,
        raised if raised & 8 != 0 => abi::FPE_FLTOVF,
        raised if raised & 0x12 != 0 => abi::FPE_FLTUND,
        _ => abi::FPE_FLTRES,
    };
    code as i32
}

/// Starts a task that was just made, for which its process has reserved a place. It runs after `before`, which is called
/// once nothing else can fail any more.
///
/// # Errors
/// [`Errno::EINTR`]: the maker of a process has a signal to take, and there is no new process. A signal to its group may
/// have missed that one. One of `before`: the process is then taken back.
pub fn launch(task: Arc<Task>, before: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
    let maker = sched::current_ref();
    let is_thread = Arc::ptr_eq(&maker.process, &task.process);
    // Its process may have stopped before it was in the list.
    task.set_signal_flag();
    let mut threads = task.process.threads.lock();
    threads.push(task.clone());
    // A call that ends all threads, or all but its own, marks those in the list. If it came before this one was in it, it
    // has marked the maker.
    if maker.is_dying() && is_thread {
        task.kill();
    }
    drop(threads);
    let several = signal::send::SEVERAL.lock();
    super::table::publish(&task);
    let is_late = !is_thread && maker.is_interrupted();
    drop(several);
    let allowed = if is_late { Err(Errno::EINTR) } else { before() };
    if allowed.is_err() {
        exit::take_back(task);
    } else {
        sched::start(task);
    }
    allowed
}
