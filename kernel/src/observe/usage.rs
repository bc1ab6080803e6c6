//! How much of the processors tasks use, and how often they fault.

use core::sync::atomic::{AtomicU64, Ordering};

use quire::cpu::CpuId;
use quire::vm::FaultKind;

use crate::cpu::area::{self, MAX_CPUS};
use crate::task::process::Process;
use crate::task::{Task, sched};
use crate::time;

/// The words of `struct rusage`.
pub const USAGE_WORDS: usize = 18;
const SECOND: u64 = 1_000_000_000;

/// What a task, a process or the children of one have used. Time in the kernel counts as the program's.
#[derive(Default)]
pub struct Usage {
    ran: AtomicU64,
    minor_faults: AtomicU64,
    major_faults: AtomicU64,
    /// How often in a row memory was short for a fault of the task, and at which address.
    shortages: AtomicU64,
    short_at: AtomicU64,
}

impl Usage {
    /// Counts that memory was short for a fault, by the task itself. Returns how often in a row for the same address:
    /// to make room, pages may have been reclaimed that the instruction needs too, so other faults prove nothing.
    pub fn note_shortage(&self, addr: u64) -> u64 {
        if self.short_at.swap(addr, Ordering::Relaxed) != addr {
            self.shortages.store(0, Ordering::Relaxed);
        }
        self.shortages.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// What failed for want of memory has worked.
    pub fn end_shortage(&self) {
        self.shortages.store(0, Ordering::Relaxed);
    }

    /// Nanoseconds on a processor, up to the last switch of tasks.
    pub fn ran(&self) -> u64 {
        self.ran.load(Ordering::Relaxed)
    }

    /// Faults that waited for no pager, and those that did.
    pub fn faults(&self) -> (u64, u64) {
        (self.minor_faults.load(Ordering::Relaxed), self.major_faults.load(Ordering::Relaxed))
    }

    /// Adds what another one has used.
    pub fn add(&self, other: &Self) {
        let (minor, major) = other.faults();
        self.ran.fetch_add(other.ran(), Ordering::Relaxed);
        self.minor_faults.fetch_add(minor, Ordering::Relaxed);
        self.major_faults.fetch_add(major, Ordering::Relaxed);
    }
}

/// When each CPU last switched tasks.
static SWITCHED: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];

/// The running CPU is about to switch from a task to another. Interrupts are off.
pub fn note_switch(cpu: CpuId, previous: &Task) {
    let now = time::now_ns();
    let ran = now.saturating_sub(SWITCHED[cpu.index()].swap(now, Ordering::Relaxed));
    previous.usage.ran.fetch_add(ran, Ordering::Relaxed);
    previous.process.account.usage.ran.fetch_add(ran, Ordering::Relaxed);
}

/// A fault of the running task's program was served.
pub fn note_fault(task: &Task, kind: FaultKind) {
    for usage in [&task.usage, &task.process.account.usage] {
        let faults = if kind == FaultKind::FileMajor { &usage.major_faults } else { &usage.minor_faults };
        faults.fetch_add(1, Ordering::Relaxed);
    }
}

/// Nanoseconds that the running task's own turn has lasted.
fn this_turn() -> u64 {
    time::now_ns().saturating_sub(SWITCHED[area::cpu_id().index()].load(Ordering::Relaxed))
}

/// Nanoseconds that the running task was on a processor.
pub fn thread_time() -> u64 {
    sched::current_ref().usage.ran() + this_turn()
}

/// Nanoseconds that the tasks of a process were on a processor; the present turns of those on other CPUs are not
/// counted yet.
pub fn process_time(process: &Process) -> u64 {
    let own = core::ptr::eq(&*sched::current_ref().process, process);
    process.account.usage.ran() + if own { this_turn() } else { 0 }
}

/// `struct rusage`, with this time in nanoseconds and this largest resident set in pages.
pub fn rusage(usage: &Usage, time: u64, most_resident: u64) -> [u64; USAGE_WORDS] {
    let (minor, major) = usage.faults();
    let mut words = [0; USAGE_WORDS];
    [words[0], words[1]] = [time / SECOND, time % SECOND / 1000];
    [words[4], words[8], words[9]] = [most_resident * 4, minor, major];
    words
}
