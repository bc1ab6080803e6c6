//! Tests whose single cases take long run a share of them, and all of them in long runs.

use crate::machines::seed;

/// Whether `QUIRE_LONG=1` asks for long runs.
pub fn long() -> bool {
    std::env::var("QUIRE_LONG").is_ok_and(|value| value != "0")
}

/// How often a drawn run is repeated: thirty times as often in long runs.
pub fn runs(usual: u64) -> u64 {
    if long() { 30 * usual } else { usual }
}

/// Every so many of a test's cases, from one that the seed draws; in long runs all.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    first: u64,
    /// Of how many cases one is taken.
    pub step: u64,
}

impl Share {
    /// One of `step` cases, from the seed, which is `default` without `QUIRE_SEED`. A step that no period of the cases
    /// divides meets all kinds of them.
    pub fn one_of(step: u64, default: u64) -> Self {
        let (seed, step) = (seed(default), if long() { 1 } else { step });
        println!("QUIRE_SEED={seed}: one of {step} cases");
        Self { first: seed % step, step }
    }

    /// The numbers of the cases, without end.
    pub fn numbers(self) -> impl Iterator<Item = u64> {
        (self.first..).step_by(self.step as usize)
    }
}
