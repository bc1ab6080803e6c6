//! How much of the processors tasks use, and how often they fault.

use core::fmt::{self, Display, Formatter};
use core::hint::spin_loop;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use quire::vm::FaultKind;

use crate::task::Task;
use crate::task::process::Process;
use crate::time;

/// The words of `struct rusage`.
pub const USAGE_WORDS: usize = 18;
const SECOND: u64 = 1_000_000_000;

/// Faults that the library knows nothing of: one that ended in a signal, and a page that the kernel brought in for the
/// arguments of a program.
const OWN: [&str; 2] = ["signal", "arguments"];
const MAJOR: usize = FaultKind::FileMajor as usize;
const SIGNAL: usize = FaultKind::NAMES.len();
const ARGUMENTS: usize = SIGNAL + 1;
const FAULTS: usize = SIGNAL + OWN.len();

/// How often a time is read until no turn ends meanwhile.
const TRIES: u32 = 64;

/// More pages than one instruction needs: code, source and target on two pages each.
const PAGES_OF_INSTRUCTION: u64 = 8;

/// How many faults of each [`FaultKind`] there were, and how many of the kernel's own kinds.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultCounts([u64; FAULTS]);

impl FaultCounts {
    /// What has come since `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self(core::array::from_fn(|kind| self.0[kind] - earlier.0[kind]))
    }
}

impl Display for FaultCounts {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        for (at, (name, count)) in FaultKind::NAMES.iter().chain(&OWN).zip(self.0).enumerate() {
            write!(out, "{}{name} {count}", if at == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// What a task, a process or the children of one have used. Time in the kernel counts as the program's.
#[derive(Default)]
pub struct Usage {
    ran: AtomicU64,
    /// Of a task: when its present turn on a processor began; 0 while it does not run.
    runs_since: AtomicU64,
    /// Of a process: how many turns of its tasks have begun to be added to `ran`, and how many are added.
    turns_ending: AtomicU64,
    turns_ended: AtomicU64,
    /// The longest time that was shown of the process.
    shown: AtomicU64,
    /// As in [`FaultCounts`].
    faults: [AtomicU64; FAULTS],
    /// How often memory was short for a fault of the task at one address, and how often at others since.
    short_at: AtomicU64,
    shortages: AtomicU64,
    elsewhere: AtomicU64,
}

impl Usage {
    /// Counts that memory was short for a fault, by the task itself. Returns how often it was at this address since
    /// the last system call; at least 1.
    ///
    /// Shortages at a few other addresses do not end the count: to make room for one page that an instruction
    /// needs, another one of its pages may have been reclaimed, and that one is short next.
    pub fn note_shortage(&self, addr: u64) -> u64 {
        if self.short_at.load(Ordering::Relaxed) == addr {
            self.elsewhere.store(0, Ordering::Relaxed);
            return self.shortages.fetch_add(1, Ordering::Relaxed) + 1;
        }
        if self.elsewhere.fetch_add(1, Ordering::Relaxed) + 1 >= PAGES_OF_INSTRUCTION {
            self.elsewhere.store(0, Ordering::Relaxed);
            self.short_at.store(addr, Ordering::Relaxed);
            self.shortages.store(1, Ordering::Relaxed);
        }
        1
    }

    /// The program makes a system call, so it is held up at no instruction.
    #[inline]
    pub fn note_call(&self) {
        self.shortages.store(0, Ordering::Relaxed);
    }

    /// What was short at this address is there. It proves nothing about other addresses.
    pub fn end_shortage(&self, addr: u64) {
        if self.short_at.load(Ordering::Relaxed) == addr {
            self.shortages.store(0, Ordering::Relaxed);
        }
    }

    /// Nanoseconds on a processor, up to the last switch of tasks.
    pub fn ran(&self) -> u64 {
        self.ran.load(Ordering::Relaxed)
    }

    /// Faults that waited for no pager, and those that did.
    pub fn faults(&self) -> (u64, u64) {
        let counts = self.fault_counts().0;
        let all: u64 = counts.iter().sum();
        (all - counts[MAJOR] - counts[SIGNAL], counts[MAJOR])
    }

    /// All faults, by kind.
    pub fn fault_counts(&self) -> FaultCounts {
        FaultCounts(core::array::from_fn(|kind| self.faults[kind].load(Ordering::Relaxed)))
    }

    /// Adds what another one has used.
    pub fn add(&self, other: &Self) {
        self.ran.fetch_add(other.ran(), Ordering::Relaxed);
        for (own, count) in self.faults.iter().zip(other.fault_counts().0) {
            own.fetch_add(count, Ordering::Relaxed);
        }
    }
}

/// The running CPU is about to switch from a task to another. Interrupts are off.
pub fn note_switch(previous: &Task, next: &Task) {
    let now = time::now_ns();
    next.usage.runs_since.store(now, Ordering::Relaxed);
    let process = &previous.process.account.usage;
    process.turns_ending.fetch_add(1, Ordering::Relaxed);
    fence(Ordering::Release);
    let ran = now.saturating_sub(previous.usage.runs_since.swap(0, Ordering::Relaxed));
    previous.usage.ran.fetch_add(ran, Ordering::Relaxed);
    process.ran.fetch_add(ran, Ordering::Relaxed);
    process.turns_ended.fetch_add(1, Ordering::Release);
}

/// A fault of the running task's program was served.
pub fn note_fault(task: &Task, kind: FaultKind) {
    note(task, kind as usize);
}

/// A fault of the running task's program ended in a signal.
pub fn note_signal(task: &Task) {
    note(task, SIGNAL);
}

/// A page was brought in for the arguments of a program.
pub fn note_arguments(task: &Task) {
    note(task, ARGUMENTS);
}

fn note(task: &Task, fault: usize) {
    for usage in [&task.usage, &task.process.account.usage] {
        usage.faults[fault].fetch_add(1, Ordering::Relaxed);
    }
}

/// Nanoseconds that a task's present turn on a processor has lasted.
fn turn_of(task: &Task) -> u64 {
    match task.usage.runs_since.load(Ordering::Relaxed) {
        0 => 0,
        since => time::now_ns().saturating_sub(since),
    }
}

/// Nanoseconds that a task was on a processor.
pub fn task_time(task: &Task) -> u64 {
    between_turns(&task.process, || task.usage.ran() + turn_of(task))
}

/// Nanoseconds that the tasks of a process were on a processor. It never goes back, also while a thread is in its last
/// turn and not in the list any more.
pub fn process_time(process: &Process) -> u64 {
    let usage = &process.account.usage;
    let time = between_turns(process, || {
        usage.ran() + process.threads.lock().iter().map(|task| turn_of(task)).sum::<u64>()
    });
    usage.shown.fetch_max(time, Ordering::Relaxed).max(time)
}

/// What `read` finds while no task of the process ends its turn: that moves from the turn to the sum. After some tries,
/// with many switches, a turn may be missing; none counts twice, as the sum is read first.
fn between_turns(process: &Process, read: impl Fn() -> u64) -> u64 {
    let usage = &process.account.usage;
    for _ in 1..TRIES {
        let ended = usage.turns_ended.load(Ordering::Acquire);
        let time = read();
        fence(Ordering::Acquire);
        if usage.turns_ending.load(Ordering::Relaxed) == ended {
            return time;
        }
        spin_loop();
    }
    read()
}

/// `struct rusage`, with this time in nanoseconds and this largest resident set in pages.
pub fn rusage(usage: &Usage, time: u64, most_resident: u64) -> [u64; USAGE_WORDS] {
    let (minor, major) = usage.faults();
    let mut words = [0; USAGE_WORDS];
    [words[0], words[1]] = [time / SECOND, time % SECOND / 1000];
    [words[4], words[8], words[9]] = [most_resident * 4, minor, major];
    words
}
