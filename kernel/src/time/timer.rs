//! The timer of each CPU. There is no tick: it is set to the earliest event, and stands still if there is none.
//!
//! Events are tasks to wake, and the end of the running task's time slice if other tasks wait for the CPU.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use quire::cpu::CpuId;

use super::{SECOND, now_ns};
use crate::cpu::apic;
use crate::cpu::area::{self, MAX_CPUS};
use crate::sync::IrqLock;
use crate::task::{Task, sched};

/// How long a task runs while others wait for its CPU.
pub const SLICE: u64 = 10_000_000;
/// The longest that the timer is set to.
const LONGEST: u64 = 10 * SECOND;

/// Counts of the APIC's timer in a nanosecond, times 2^32.
static COUNTS_PER_NS: AtomicU64 = AtomicU64::new(0);

/// A task to wake. It is allocated before the lock is taken and freed after that, since an allocation may have to
/// wait for other CPUs.
struct Sleeper {
    deadline: u64,
    number: u64,
    task: Arc<Task>,
    next: Option<Box<Sleeper>>,
}

/// A CPU's events.
struct Events {
    /// The earliest first.
    sleepers: Option<Box<Sleeper>>,
    /// When the running task's slice ends.
    slice_end: Option<u64>,
    /// What the timer is set to, or later.
    set_to: u64,
    numbers: u64,
}

static EVENTS: [IrqLock<Events>; MAX_CPUS] =
    [const { IrqLock::new(Events { sleepers: None, slice_end: None, set_to: u64::MAX, numbers: 0 }) };
        MAX_CPUS];

/// The timer makes so many counts in a second.
pub(super) fn set_frequency(hz: u64) {
    COUNTS_PER_NS.store(((u128::from(hz) << 32) / u128::from(SECOND)) as u64, Ordering::Relaxed);
}

impl Events {
    /// The place in the list before which all deadlines are at most `deadline`.
    fn place(&mut self, deadline: u64) -> &mut Option<Box<Sleeper>> {
        let mut place = &mut self.sleepers;
        while place.as_ref().is_some_and(|sleeper| sleeper.deadline <= deadline) {
            place = &mut place.as_mut().expect("checked").next;
        }
        place
    }

    fn insert(&mut self, mut sleeper: Box<Sleeper>) -> u64 {
        self.numbers += 1;
        let number = self.numbers;
        sleeper.number = number;
        let place = self.place(sleeper.deadline);
        sleeper.next = place.take();
        *place = Some(sleeper);
        number
    }

    fn remove(&mut self, number: u64) -> Option<Box<Sleeper>> {
        let mut place = &mut self.sleepers;
        while place.as_ref().is_some_and(|sleeper| sleeper.number != number) {
            place = &mut place.as_mut().expect("checked").next;
        }
        let mut sleeper = place.take()?;
        *place = sleeper.next.take();
        Some(sleeper)
    }

    /// Takes the first sleeper whose time has come.
    fn take_due(&mut self, now: u64) -> Option<Box<Sleeper>> {
        if self.sleepers.as_ref()?.deadline > now {
            return None;
        }
        let mut sleeper = self.sleepers.take()?;
        self.sleepers = sleeper.next.take();
        Some(sleeper)
    }

    /// Sets this CPU's timer to the earliest event, unless it is set to that or to an earlier one.
    fn set_timer(&mut self) {
        let sleeper = self.sleepers.as_ref().map_or(u64::MAX, |sleeper| sleeper.deadline);
        let earliest = sleeper.min(self.slice_end.unwrap_or(u64::MAX));
        if earliest >= self.set_to {
            return;
        }
        let now = now_ns();
        let wait = earliest.saturating_sub(now).min(LONGEST);
        self.set_to = now + wait;
        let counts = (u128::from(wait) * u128::from(COUNTS_PER_NS.load(Ordering::Relaxed))) >> 32;
        apic::set_timer((counts as u32).saturating_add(1));
    }
}

/// A wake-up to come. Dropping it cancels it.
pub struct Alarm {
    cpu: CpuId,
    number: u64,
}

/// Wakes the task at a time of [`now_ns`], or soon after.
pub fn wake_at(deadline: u64, task: Arc<Task>) -> Alarm {
    let sleeper = Box::new(Sleeper { deadline, number: 0, task, next: None });
    let cpu = area::cpu_id();
    let mut events = EVENTS[cpu.index()].lock();
    let number = events.insert(sleeper);
    events.set_timer();
    Alarm { cpu, number }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        let removed = EVENTS[self.cpu.index()].lock().remove(self.number);
        drop(removed);
    }
}

/// The running task has begun a turn; `ends` says whether tasks wait for this CPU, or the task's time is limited.
/// Interrupts are off.
pub fn begin_slice(ends: bool) {
    let mut events = EVENTS[area::cpu_id().index()].lock();
    events.slice_end = ends.then(|| now_ns() + SLICE);
    events.set_timer();
}

/// The running task's slice ends some time: a task has come to wait for this CPU, or the running one's time is limited.
pub fn begin_missing_slice() {
    let mut events = EVENTS[area::cpu_id().index()].lock();
    if events.slice_end.is_none() {
        events.slice_end = Some(now_ns() + SLICE);
        events.set_timer();
    }
}

/// The handler of the timer.
pub fn expired() {
    let events = &EVENTS[area::cpu_id().index()];
    let now = now_ns();
    events.lock().set_to = u64::MAX;
    loop {
        let due = events.lock().take_due(now);
        let Some(sleeper) = due else { break };
        sched::wake(&sleeper.task);
    }
    let mut events = events.lock();
    if events.slice_end.is_some_and(|end| end <= now) {
        events.slice_end = None;
        area::this().set_need_resched(true);
    }
    events.set_timer();
}
