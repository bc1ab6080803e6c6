//! The time-stamp counter (TSC): its rate, and moments read from it and from the clock.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The time over which the counter is compared with the clock: enough for five digits.
const COMPARED: Duration = Duration::from_millis(30);

/// Reads the counter, without waiting for earlier instructions or holding later ones back.
#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: C5: every x86-64 processor has the instruction. A system that forbids it to user mode stops the
    // process here by a fault.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Counts in a second, measured against the monotonic clock once for each process.
pub fn hertz() -> f64 {
    static HERTZ: OnceLock<f64> = OnceLock::new();
    *HERTZ.get_or_init(|| {
        let start = Moment::now();
        while start.clock.elapsed() < COMPARED {
            std::hint::spin_loop();
        }
        let span = start.until(Moment::now());
        span.cycles / span.nanoseconds * 1e9
    })
}

/// Nanoseconds that this many counts take.
pub fn to_nanoseconds(cycles: f64) -> f64 {
    cycles * 1e9 / hertz()
}

/// Counts between two successive readings of the counter: the cost of timing one piece of work.
pub fn reading_cost() -> u64 {
    let between = |_| {
        let first = now();
        now().wrapping_sub(first)
    };
    (0..1000).map(between).min().unwrap_or_default()
}

/// A moment, on the clock and on the counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    clock: Instant,
    counter: u64,
}

/// The time between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Span {
    /// By the clock.
    pub nanoseconds: f64,
    /// By the counter.
    pub cycles: f64,
}

impl Moment {
    /// This moment.
    #[inline]
    pub fn now() -> Self {
        Self { clock: Instant::now(), counter: now() }
    }

    /// The earlier of the two.
    #[must_use]
    pub fn earlier(self, other: Self) -> Self {
        if other.clock < self.clock { other } else { self }
    }

    /// The later of the two.
    #[must_use]
    pub fn later(self, other: Self) -> Self {
        if other.clock > self.clock { other } else { self }
    }

    /// The time from here to `end`.
    pub fn until(self, end: Self) -> Span {
        let nanoseconds = end.clock.saturating_duration_since(self.clock).as_nanos() as f64;
        Span { nanoseconds, cycles: end.counter.wrapping_sub(self.counter) as f64 }
    }
}

impl Span {
    /// The time of this many counts.
    pub fn of_cycles(cycles: f64) -> Self {
        Self { nanoseconds: to_nanoseconds(cycles), cycles }
    }
}

impl std::ops::Add for Span {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { nanoseconds: self.nanoseconds + other.nanoseconds, cycles: self.cycles + other.cycles }
    }
}

impl std::ops::Mul<f64> for Span {
    type Output = Self;

    fn mul(self, by: f64) -> Self {
        Self { nanoseconds: self.nanoseconds * by, cycles: self.cycles * by }
    }
}

#[cfg(test)]
mod tests;
