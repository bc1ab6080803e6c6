//! Failure injection: which requests for frames fail as if memory were out.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::task::hold;

/// Which allocations fail, counted from the moment the plan is set. Questions are numbered from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FailurePlan {
    /// None fails and none is counted: costs one load.
    #[default]
    Off,
    /// None fails; they are counted.
    Count,
    /// The `n`-th fails, and no other.
    Nth(u64),
    /// The `n`-th and all after it fail.
    From(u64),
    /// Every `k`-th fails: those numbered `k - 1`, `2 k - 1`, and so on. Zero fails none.
    Every(u64),
    /// Each fails with a probability of one in `one_in`, decided from the seed and its number alone.
    Seeded {
        /// Where the decisions come from.
        seed: u64,
        /// One in how many fails; zero fails none.
        one_in: u64,
    },
}

impl FailurePlan {
    pub(crate) fn fails(self, number: u64) -> bool {
        match self {
            Self::Off | Self::Count => false,
            Self::Nth(n) => number == n,
            Self::From(n) => number >= n,
            Self::Every(k) => k != 0 && (number + 1).is_multiple_of(k),
            Self::Seeded { seed, one_in } => one_in != 0 && mix(seed ^ mix(number)).is_multiple_of(one_in),
        }
    }
}

/// A bijective hash of 64 bits: the finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
/// generators", OOPSLA 2014).
pub(crate) const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The plan in force and what was counted under it.
#[derive(Default)]
pub(crate) struct Failures {
    armed: AtomicBool,
    plan: Mutex<FailurePlan>,
    asked: AtomicU64,
    failed: AtomicU64,
}

impl Failures {
    pub(crate) fn set(&self, plan: FailurePlan) {
        let _held = hold();
        *self.plan.lock().expect("no holder of the plan panics") = plan;
        self.asked.store(0, Ordering::Relaxed);
        self.failed.store(0, Ordering::Relaxed);
        self.armed.store(plan != FailurePlan::Off, Ordering::Release);
    }

    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    pub(crate) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn fail(&self) -> bool {
        self.armed.load(Ordering::Relaxed) && self.decide()
    }

    #[cold]
    fn decide(&self) -> bool {
        let _held = hold();
        let plan = *self.plan.lock().expect("no holder of the plan panics");
        let fails = plan.fails(self.asked.fetch_add(1, Ordering::Relaxed));
        self.failed.fetch_add(u64::from(fails), Ordering::Relaxed);
        fails
    }
}

#[cfg(test)]
mod tests;
