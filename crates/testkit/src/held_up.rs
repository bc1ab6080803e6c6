//! Two CPUs: one is held up at chosen calls of the platform while the other works.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hosted::{Hosted, InterruptPlan};
use quire::platform::Context;

use crate::share::long;

/// How long a CPU waits for another CPU, which may be waiting for it.
pub const PATIENCE: Duration = Duration::from_millis(40);

/// Turns of spin loops after which a CPU spins for a lock whose holder is held up: any other wait is shorter.
const STUCK_TURNS: u64 = 5_000;

/// Two CPUs of which the first was held up in the middle of its work until the second had done its own.
pub struct HeldUp<A, B> {
    /// Calls of the platform in the first CPU's work.
    pub calls: u64,
    /// The result of the first CPU.
    pub first: A,
    /// The result of the second CPU.
    pub second: B,
    /// Whether the second CPU finished while the first was held up; else it waited for the first, or began
    /// after it ended.
    pub in_time: bool,
}

/// Runs work on CPU 0 and holds it up at the calls of the platform that `plan` names, until CPU 1 has done
/// its own work, or has taken so long that it seems to wait for CPU 0.
pub fn held_up<A: Send, B: Send>(
    machine: &Hosted,
    plan: InterruptPlan,
    patience: Duration,
    first: impl Fn() -> A + Sync,
    second: impl Fn() -> B + Sync,
) -> HeldUp<A, B> {
    held_up_to_look(machine, plan, patience, first, second, |_| ())
}

/// The same. At the end of the time for which CPU 0 is held up, `look` runs, with whether CPU 1 is done.
pub fn held_up_to_look<A: Send, B: Send>(
    machine: &Hosted,
    plan: InterruptPlan,
    patience: Duration,
    first: impl Fn() -> A + Sync,
    second: impl Fn() -> B + Sync,
    look: impl Fn(bool) + Sync,
) -> HeldUp<A, B> {
    let [asked, through, in_time] = [const { AtomicBool::new(false) }; 3];
    let mut ends = machine.spawn_cpus(2, |cpu| {
        if cpu.0 == 1 {
            // CPU 0 may have failed before it asked.
            within(Duration::from_secs(10), || asked.load(Ordering::SeqCst));
            let end = second();
            through.store(true, Ordering::SeqCst);
            return (None, Some(end));
        }
        let hold_up = || {
            asked.store(true, Ordering::SeqCst);
            let came = unless_stuck(machine, patience, || through.load(Ordering::SeqCst));
            in_time.fetch_or(came, Ordering::SeqCst);
            look(came);
        };
        let ran = machine.interrupt_at_calls(plan, Context::HardInterrupt, hold_up, &first);
        asked.store(true, Ordering::SeqCst);
        (Some((ran.events, ran.result)), None)
    });
    let second = ends.pop().and_then(|end| end.1).expect("CPU 1 did its part");
    let (calls, first) = ends.pop().and_then(|end| end.0).expect("CPU 0 did its part");
    HeldUp { calls, first, second, in_time: in_time.into_inner() }
}

/// How long the threads of a stress test run: `QUIRE_LONG=1` asks for thirty times as long.
pub fn stress_time() -> Duration {
    Duration::from_millis(if long() { 18_000 } else { 600 })
}

/// The time of a stress test, and more on a host so busy that little happened in it.
pub struct Stress {
    start: Instant,
    time: Duration,
}

impl Stress {
    /// Lasts [`stress_time`] or longer, from now on.
    #[must_use]
    pub fn begin() -> Self {
        Self { start: Instant::now(), time: stress_time() }
    }

    /// Whether the test goes on: for its time, and until there was `enough` to see, though not forever.
    pub fn goes_on(&self, enough: impl FnOnce() -> bool) -> bool {
        let passed = self.start.elapsed();
        passed < self.time || passed < 30 * self.time && !enough()
    }
}

/// As [`within`], on one of two CPUs of the machine; ends as soon as the other CPU waits for this one: it has gone to
/// sleep, and no other CPU could wake it, or it has spun for so many turns.
pub fn unless_stuck(machine: &Hosted, time: Duration, came: impl Fn() -> bool) -> bool {
    let (turns, waits) = (machine.spin_turns() + STUCK_TURNS, machine.counters().waits);
    let waits_for_us = || machine.counters().waits > waits || machine.spin_turns() > turns;
    within(time, || came() || waits_for_us()) && came()
}

/// How long [`within`] looks again and again: most of what it waits for comes sooner.
const SOON: Duration = Duration::from_micros(100);

/// How long [`within`] sleeps between two looks then, so that other tests have the processor.
const REST: Duration = Duration::from_micros(50);

/// Waits until `came` is true, for at most `time`; returns whether it became so.
pub fn within(time: Duration, came: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !came() {
        let passed = start.elapsed();
        if passed > time {
            return false;
        }
        if passed < SOON { std::thread::yield_now() } else { std::thread::sleep(REST) }
    }
    true
}
