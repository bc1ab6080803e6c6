//! Failure injection: which requests fail as if memory had run out, and how many requests there were.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::plan::FailurePlan;
use crate::task::hold;

/// The current plan, and its counts.
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
