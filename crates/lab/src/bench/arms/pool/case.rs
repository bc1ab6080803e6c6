//! The work of the arms.

use std::time::Duration;

use crate::bench::experiment::{Better, Metric};

/// Nanoseconds of the whole request.
pub const REQUEST: Metric = Metric { name: "request", unit: "ns", better: Better::Lower };
/// Bytes of a page of the pool.
pub(super) const PAGE_BYTES: u64 = 2 << 20;
/// Pages of 2 MiB in a page of 1 GiB.
pub(super) const PARTS: u64 = 512;

/// Grow a pool of 2 MiB pages from nothing, or shrink it to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pools {
    /// Pages of the pool when it is full.
    pub pages: u64,
    /// Grow; else shrink.
    pub grow: bool,
    /// Every block was in small pieces before; else none ever was.
    pub churned: bool,
    /// A thread of this process runs on the other CPU all the time.
    pub busy: bool,
    /// The least time of a broadcast: as on a machine with more CPUs.
    pub broadcast: Duration,
    /// The processor that works, and the other.
    pub processors: (usize, Option<usize>),
}

/// Demote free pages of 1 GiB into pages of 2 MiB, or promote those again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demotion {
    /// Pages of 1 GiB in the pools, whole or as parts.
    pub pages: u64,
    /// The change.
    pub way: Way,
}

/// A change of pages of 1 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// All of them are demoted.
    Demote,
    /// All of them are promoted; the pool's list has the order of their demotion.
    Promote,
    /// Every second one is promoted; a part of each other one is in use. The pool's list is in random order.
    PromoteScattered,
}

impl Demotion {
    /// Pages of 1 GiB that are changed.
    pub fn wanted(self) -> u64 {
        if self.way == Way::PromoteScattered { self.pages.div_ceil(2) } else { self.pages }
    }
}
