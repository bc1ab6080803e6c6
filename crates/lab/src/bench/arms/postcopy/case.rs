//! What the arms are asked to do, and what is measured of it.

use quire::hugetlb::HugeSize;

use super::link::Wire;
use crate::bench::experiment::{Better, Metric};

/// Nanoseconds that 99 of 100 fetches take at most.
pub const P99: Metric = lower("p99");
/// Nanoseconds of the longest fetch.
pub const LONGEST: Metric = lower("longest");
/// Nanoseconds that virtual CPUs waited for memory, together.
pub const STALL: Metric = lower("stall");
/// Nanoseconds for which the wire was free, until all was here.
pub const IDLE: Metric = lower("idle");
/// Nanoseconds until all was here and mapped.
pub const THERE: Metric = lower("there");
/// Nanoseconds until all was mapped by the largest leaves.
pub const LARGE: Metric = lower("large");

const fn lower(name: &'static str) -> Metric {
    Metric { name, unit: "ns", better: Better::Lower }
}

/// A migration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migration {
    /// The guest's memory.
    pub bytes: u64,
    /// The huge pages that it is made of.
    pub page: HugeSize,
    /// What it comes by.
    pub wire: Wire,
    /// Virtual CPUs.
    pub cpus: usize,
    /// Decides what they touch.
    pub seed: u64,
    /// The processors: virtual CPUs take turns on all but the last, which is the receiver's.
    pub processors: Vec<usize>,
}

impl Migration {
    /// The processor of each virtual CPU, then the receiver's.
    pub(super) fn placed(&self) -> Vec<usize> {
        let guests = self.processors.len().saturating_sub(1).max(1);
        let last = self.processors[self.processors.len() - 1];
        (0..self.cpus).map(|cpu| self.processors[cpu % guests]).chain([last]).collect()
    }
}

/// What a page of 4 KiB holds.
pub(super) const fn tag(page: u64) -> u64 {
    page.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}
