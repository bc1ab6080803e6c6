//! Arms of the experiment `postcopy`: a guest runs on memory that is still on its way, fetched in pieces of one size.

mod guest;
pub mod link;
mod linux;
mod outcome;
mod quire;
mod receiver;
mod uffd;

use crate::bench::experiment::{Arm, Better, Metric};
use ::quire::hugetlb::HugeSize;
use link::Wire;

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
    fn placed(&self) -> Vec<usize> {
        let guests = self.processors.len().saturating_sub(1).max(1);
        let last = self.processors[self.processors.len() - 1];
        (0..self.cpus).map(|cpu| self.processors[cpu % guests]).chain([last]).collect()
    }
}

/// Every arm. The checksum is the sum of what the guest reads at the end, of each 4 KiB.
pub fn all() -> Vec<Box<dyn Arm<Migration>>> {
    let mut arms = quire::all();
    arms.push(Box::new(linux::Linux));
    arms
}

/// What a page of 4 KiB holds.
const fn tag(page: u64) -> u64 {
    page.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}
