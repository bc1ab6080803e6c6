//! The work of the arms, and their metrics.

use quire::hugetlb::HugeSize;

use std::time::Duration;

use super::link::Wire;
use crate::bench::experiment::{Better, Metric};
use crate::bench::folio::PAGE;

/// The 99th percentile of the fetches, in nanoseconds.
pub const P99: Metric = lower("p99");
/// Nanoseconds of the longest fetch.
pub const LONGEST: Metric = lower("longest");
/// Nanoseconds that virtual CPUs waited for memory, together.
pub const STALL: Metric = lower("stall");
/// Nanoseconds for which the wire was idle before all pieces had arrived.
pub const IDLE: Metric = lower("idle");
/// Nanoseconds until all pieces had arrived and were mapped.
pub const THERE: Metric = lower("there");
/// Nanoseconds until the largest leaves mapped all memory.
pub const LARGE: Metric = lower("large");

const fn lower(name: &'static str) -> Metric {
    Metric { name, unit: "ns", better: Better::Lower }
}

/// A migration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migration {
    /// The guest's memory.
    pub bytes: u64,
    /// The size of its huge pages.
    pub page: HugeSize,
    /// The link.
    pub wire: Wire,
    /// Virtual CPUs.
    pub cpus: usize,
    /// Seed of their accesses.
    pub seed: u64,
    /// The processors: virtual CPUs share all but the last, which is the receiver's.
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

/// How long a virtual CPU polls for its page before its thread sleeps: KVM's default (`halt_poll_ns`).
pub(super) const HALT_POLL: Duration = Duration::from_micros(200);

/// What a virtual CPU does until its page is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// It sleeps at once.
    Sleep,
    /// It polls, at least for [`HALT_POLL`].
    Poll,
}

/// Words of a page of 4 KiB, all of which a piece brings.
pub(super) const WORDS: u64 = PAGE as u64 / 8;

/// Each word of a page of 4 KiB.
pub(super) const fn tag(page: u64) -> u64 {
    page.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}
