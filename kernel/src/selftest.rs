//! Checks of the kernel itself, chosen by its option `selftest`. `panic` and `trap` make it fail, as a test of what a
//! failure shows; with `idle` an idle CPU must clear memory, whatever was wanted of the task before, also after a
//! clear that a task has ended.
//!
//! With `shootdown`, the first CPU changes an address space, and all CPUs look at it right after that: what was unmapped
//! must fault, what was made read-only must not be written, and what was moved must be gone from its old place. Each CPU
//! has used the old translation just before, so it sees the change only because of the flush.

use alloc::sync::Arc;
use core::arch::asm;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use quire::addr::VirtAddr;
use quire::arch::{CpuFeatures, Protection};
use quire::error::MmError;
use quire::limits::FRAME_SIZE;
use quire::stats::Stat;
use quire::vm::{MapRequest, Remap};
use quire_interop::user_memory::UserMemory;
use spin::Once;
use x86_64::instructions::interrupts;

use crate::boot::command;
use crate::cpu::{area, ipi};
use crate::device::exit::Outcome;
use crate::device::log::log;
use crate::memory::manager::{self, Balance, Space, manager};
use crate::sync::Mutex;
use crate::task::wait::WaitQueue;
use crate::time;

const ROUNDS: u64 = 1000;
/// How long the CPU has nothing to do: much longer than it takes to clear some memory.
const SLEEP_NS: u64 = 500_000_000;
/// How long it sleeps before that, at first: much shorter than it takes to clear all that an idle CPU clears.
const SHORT_SLEEP_NS: u64 = 4_000_000;
/// A value that no memory holds by chance.
const MARK: u64 = 0x5175_6972_6500_0000;
/// An address of no memory.
const UNMAPPED: u64 = 0x10;

/// What all CPUs do with one word of the address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Look {
    /// Nothing any more.
    End,
    /// Read it: it has the value.
    Has,
    /// Write the same value again: it is possible.
    Writes,
    /// Read it: it faults.
    Gone,
    /// Write another value: it faults.
    ReadOnly,
}

/// What the CPUs are asked to do.
struct Question {
    look: AtomicU8,
    addr: AtomicU64,
    value: AtomicU64,
    /// The CPUs that are asked and have not answered, one bit each. A CPU that is online and has not come to
    /// [`serve`] finds its bit when it comes.
    asked: AtomicU64,
}

static QUESTION: Question = Question {
    look: AtomicU8::new(Look::End as u8),
    addr: AtomicU64::new(0),
    value: AtomicU64::new(0),
    asked: AtomicU64::new(0),
};
static SPACE: Mutex<Option<Arc<Space>>> = Mutex::new(None);
static WRONG: AtomicU64 = AtomicU64::new(0);
static IS_WANTED: Once<bool> = Once::new();

/// Whether a check is asked for. Called before the other CPUs start.
pub fn wanted() -> bool {
    *IS_WANTED.call_once(|| command::option("selftest") == Some("shootdown"))
}

/// Fails if the option says so, in a task, as an error of the kernel would.
pub fn fail_if_wanted() {
    match command::option("selftest") {
        Some("panic") => panic!("a panic on purpose"),
        Some("trap") => trap(),
        Some("idle") => check_idle(),
        _ => {}
    }
}

/// Sleeps until the CPU has cleared something, and so wakes in the middle of a clear, which ends. Then asks the running task
/// to make way, as the end of its time slice does, and sleeps before it looks. The CPU is idle then, and clears memory all
/// the same.
fn check_idle() {
    let cleared_in = |ns| {
        let before = manager().stat(Stat::PgzeroAhead);
        sleep(ns);
        manager().stat(Stat::PgzeroAhead) - before
    };
    let mut ns = SHORT_SLEEP_NS;
    while cleared_in(ns) == 0 {
        ns *= 2;
        assert!(ns < SLEEP_NS, "no frames were cleared while the CPU was idle");
    }
    area::this().set_need_resched(true);
    let cleared = cleared_in(SLEEP_NS);
    assert!(cleared > 0, "{cleared} frames were cleared after a clear that was ended");
    log!("selftest: an idle CPU has cleared memory");
}

fn sleep(ns: u64) {
    let deadline = time::now_ns() + ns;
    let slept = WaitQueue::new().wait_until_deadline(Some(deadline), || None::<()>);
    assert_eq!(slept, Ok(None), "nothing else wakes this task");
}

/// Stores to an address that nothing maps, with a mark in a register.
#[inline(never)]
fn trap() {
    // SAFETY: X7: the kernel's own tables map nothing at this address, so the store faults and changes nothing.
    unsafe { asm!("mov byte ptr [{}], 0", in(reg) UNMAPPED, in("r15") MARK, options(nostack)) };
}

/// Runs the check on the first CPU.
#[inline(never)]
pub fn run() -> Outcome {
    let before = Balance::now();
    let result = check();
    let wrong = WRONG.load(Ordering::Relaxed);
    let cpus = ipi::online().len();
    log!("selftest: {ROUNDS} rounds on {cpus} CPUs, {wrong} stale translations");
    match result {
        Ok(()) if wrong == 0 && manager::check(before) => Outcome::Exited(0),
        Ok(()) => Outcome::KernelFailed,
        Err(error) => {
            log!("selftest: {error}");
            Outcome::KernelFailed
        }
    }
}

fn check() -> Result<(), MmError> {
    let space = Arc::new(manager().new_mm()?);
    *SPACE.lock() = Some(space.clone());
    space.switch_in();
    let result = (0..ROUNDS).try_for_each(|round| check_round(&space, round));
    ask(Look::End, VirtAddr(0), 0);
    *SPACE.lock() = None;
    space.switch_out();
    result
}

fn check_round(space: &Space, round: u64) -> Result<(), MmError> {
    let value = MARK + round;
    let prot = Protection::READ | Protection::WRITE;
    let addr = space.mmap(&MapRequest { len: FRAME_SIZE, prot, populate: true, ..MapRequest::default() })?;
    let stored = user_memory().copy_to_user(addr, &value.to_le_bytes()) == 0;
    count_wrong(!stored);
    ask(Look::Has, addr, value);
    match round % 3 {
        0 => {}
        1 => {
            ask(Look::Writes, addr, value);
            space.mprotect(addr, FRAME_SIZE, Protection::READ)?;
            ask(Look::ReadOnly, addr, value);
        }
        _ => {
            let to = VirtAddr(addr.0 - (64 << 20));
            let moved = space.mremap(addr, FRAME_SIZE, FRAME_SIZE, Remap::Fixed(to))?;
            ask(Look::Gone, addr, value);
            ask(Look::Has, moved, value);
            space.munmap(moved, FRAME_SIZE)?;
            ask(Look::Gone, moved, value);
            return Ok(());
        }
    }
    space.munmap(addr, FRAME_SIZE)?;
    ask(Look::Gone, addr, value);
    Ok(())
}

/// Lets all CPUs look, and waits for them.
fn ask(look: Look, addr: VirtAddr, value: u64) {
    QUESTION.look.store(look as u8, Ordering::Relaxed);
    QUESTION.addr.store(addr.0, Ordering::Relaxed);
    QUESTION.value.store(value, Ordering::Relaxed);
    let others = ipi::others();
    QUESTION.asked.store(others.iter().map(|cpu| 1 << cpu.0).sum(), Ordering::Release);
    others.iter().for_each(ipi::reschedule);
    answer(look, addr, value);
    while QUESTION.asked.load(Ordering::Acquire) != 0 {
        core::hint::spin_loop();
    }
}

/// What the other CPUs do during a check, after which the machine ends. Returns if there is none.
pub fn serve() {
    if !IS_WANTED.get().copied().unwrap_or(false) {
        return;
    }
    let own = 1 << area::cpu_id().0;
    let mut space = None;
    loop {
        sleep_until(|| QUESTION.asked.load(Ordering::Acquire) & own != 0);
        let looks = [Look::Has, Look::Writes, Look::Gone, Look::ReadOnly];
        let number = QUESTION.look.load(Ordering::Relaxed);
        let look = looks.into_iter().find(|&look| look as u8 == number).unwrap_or(Look::End);
        let (addr, value) = (QUESTION.addr.load(Ordering::Relaxed), QUESTION.value.load(Ordering::Relaxed));
        if space.is_none() {
            space = SPACE.lock().clone();
            space.as_ref().inspect(|space| space.switch_in());
        }
        answer(look, VirtAddr(addr), value);
        if look == Look::End {
            space.take().inspect(|space| space.switch_out());
        }
        QUESTION.asked.fetch_and(!own, Ordering::Release);
    }
}

/// Sleeps between interrupts: a CPU that spins takes time from the one that is waited for where an emulator
/// has fewer CPUs than the machine.
fn sleep_until(is_so: impl Fn() -> bool) {
    loop {
        interrupts::disable();
        if is_so() {
            return interrupts::enable();
        }
        interrupts::enable_and_hlt();
    }
}

fn answer(look: Look, addr: VirtAddr, value: u64) {
    let memory = user_memory();
    let mut word = [0; 8];
    let wrong = match look {
        Look::End => false,
        Look::Has => memory.copy_from_user(&mut word, addr) != 0 || u64::from_le_bytes(word) != value,
        Look::Writes => memory.copy_to_user(addr, &value.to_le_bytes()) != 0,
        Look::Gone => memory.copy_from_user(&mut word, addr) == 0,
        Look::ReadOnly => memory.copy_to_user(addr, &(!value).to_le_bytes()) == 0,
    };
    if wrong {
        log!("selftest: CPU {} at {:#x}: {look:?} does not hold", area::cpu_id().0, addr.0);
    }
    count_wrong(wrong);
}

fn count_wrong(wrong: bool) {
    WRONG.fetch_add(u64::from(wrong), Ordering::Relaxed);
}

/// Accesses without a look at the page tables before.
fn user_memory() -> UserMemory {
    // SAFETY: K2, K3: the lower half holds this check's memory alone, and the kernel requires SMAP.
    unsafe { UserMemory::new(manager::paging(), CpuFeatures::detect(), true) }
}
