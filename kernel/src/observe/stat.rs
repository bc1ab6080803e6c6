//! `/proc/PID/stat`, and the times of CPUs for `/proc/stat`.

use alloc::sync::Arc;
use core::fmt::{self, Display, Write};
use core::ops::Add;
use core::sync::atomic::{AtomicU64, Ordering};

use quire::cpu::CpuId;
use quire_interop::proc::Sizes;

use super::Thread;
use super::process::{name, task_of};
use super::status::{actions, own_signals, state};
use super::text::write_name;
use super::usage::{process_time, task_time};
use crate::cpu::area::MAX_CPUS;
use crate::task::process::{Exit, Process};
use crate::time;

/// The ticks of times in these files in a nanosecond: 100 in a second.
const TICK: u64 = 10_000_000;

/// When a CPU became idle, and how long it was before, in nanoseconds. Only the CPU itself stores.
struct IdleClock {
    /// 0 while it is not idle.
    since: AtomicU64,
    before: AtomicU64,
}

static IDLE: [IdleClock; MAX_CPUS] =
    [const { IdleClock { since: AtomicU64::new(0), before: AtomicU64::new(0) } }; MAX_CPUS];

/// A CPU, which is the running one, has nothing to run from now on, or has something.
pub fn note_idle(cpu: CpuId, idle: bool) {
    let (clock, now) = (&IDLE[cpu.index()], time::now_ns());
    let since = clock.since.load(Ordering::Relaxed);
    if idle && since == 0 {
        clock.since.store(now.max(1), Ordering::Relaxed);
    } else if !idle && since != 0 {
        clock.before.fetch_add(now - since, Ordering::Relaxed);
        clock.since.store(0, Ordering::Relaxed);
    }
}

/// What a CPU did, in ticks. What the kernel does for a program counts as the program's time.
#[derive(Clone, Copy, Default)]
pub(super) struct CpuTimes {
    /// It ran programs.
    pub user: u64,
    /// It had nothing to do.
    pub idle: u64,
}

impl CpuTimes {
    /// Those of a CPU since the machine started.
    pub(super) fn of(cpu: usize) -> Self {
        let (clock, now) = (&IDLE[cpu], time::now_ns());
        let since = clock.since.load(Ordering::Relaxed);
        let idle =
            clock.before.load(Ordering::Relaxed) + if since == 0 { 0 } else { now.saturating_sub(since) };
        Self { user: now.saturating_sub(idle) / TICK, idle: idle / TICK }
    }
}

impl Add for CpuTimes {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { user: self.user + other.user, idle: self.idle + other.idle }
    }
}

/// The ten fields of a line of `/proc/stat`.
impl Display for CpuTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} 0 0 {} 0 0 0 0 0 0", self.user, self.idle)
    }
}

/// `/proc/PID/stat`: 52 fields in one line. Fields about terminals, ticks of children and so on, which this kernel
/// does not keep, are 0.
pub(super) fn stat(process: &Arc<Process>, thread: Thread, out: &mut dyn Write) -> fmt::Result {
    let program = process.account.program.lock().clone();
    let space = process.space_handle();
    let sizes = space.as_ref().map(|space| Sizes::of(space)).unwrap_or_default();
    let heap = space.map_or(0, |space| space.heap().start.0);
    let (letter, _) = state(process, thread);
    write!(out, "{} (", thread.unwrap_or(process.id))?;
    write_name(out, &name(process, thread))?;
    let parent = process.parent().map_or(0, |parent| parent.id);
    let (group, session) = (process.group.load(Ordering::Relaxed), process.session.load(Ordering::Relaxed));
    // No terminal; the group in front of it is -1.
    write!(out, ") {letter} {parent} {group} {session} 0 -1 0")?;
    let account = &process.account;
    let task = task_of(process, thread);
    // Of a thread that ends meanwhile nothing is known; a process has used what its threads have.
    let ((minor, major), time) = match (thread, &task) {
        (None, _) => (account.usage.faults(), process_time(process)),
        (Some(_), Some(task)) => (task.usage.faults(), task_time(task)),
        (Some(_), None) => ((0, 0), 0),
    };
    let (minor_children, major_children) = account.children.faults();
    write!(out, " {minor} {minor_children} {major} {major_children}")?;
    let (own, children) = (time / TICK, account.children.ran() / TICK);
    write!(out, " {own} 0 {children} 0 20 0")?;
    let threads = process.threads.lock().len().max(1);
    let started = process.account.started / TICK;
    write!(out, " {threads} 0 {started} {} {} {}", sizes.total * 4096, sizes.rss(), u64::MAX)?;
    write!(out, " {} {} {} 0 0", program.code.start.0, program.code.end.0, program.stack.0)?;
    let [pending, blocked] = own_signals(task.as_deref());
    let [ignored, caught] = actions(process);
    // Only the first 31 signals have a place here.
    let old = |set: u64| set & 0x7fff_ffff;
    write!(out, " {} {} {} {}", old(pending), old(blocked), old(ignored), old(caught))?;
    let signal = process.exit_signal.load(Ordering::Relaxed);
    write!(out, " 0 0 0 {signal} 0 0 0 0 0 0 {} {} {heap}", program.data.start.0, program.data.end.0)?;
    let (arguments, environment) = (&program.arguments, &program.environment);
    write!(out, " {} {}", arguments.start.0, arguments.end.0)?;
    write!(out, " {} {}", environment.start.0, environment.end.0)?;
    writeln!(out, " {}", process.exit().filter(|_| process.has_ended()).map_or(0, Exit::wait_status))
}
