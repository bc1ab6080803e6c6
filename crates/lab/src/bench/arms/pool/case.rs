//! What the arms are asked to do.

use crate::bench::experiment::{Better, Metric};

/// Nanoseconds of the whole request.
pub const REQUEST: Metric = Metric { name: "request", unit: "ns", better: Better::Lower };
/// Bytes of a page of the pool.
pub(super) const PAGE_BYTES: u64 = 2 << 20;
/// Pages of 2 MiB of a page of 1 GiB.
pub(super) const PARTS: u64 = 512;

/// Make a pool of pages of 2 MiB larger or smaller, from nothing or to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pools {
    /// Pages of the pool when it is full.
    pub pages: u64,
    /// From nothing; else to nothing.
    pub grow: bool,
    /// Every block had been in small pieces before; else none ever was.
    pub churned: bool,
    /// A thread of ours runs on the other CPU all the time.
    pub busy: bool,
    /// The processors: the one that works, and the other.
    pub processors: (usize, Option<usize>),
}

/// Take free pages of 1 GiB apart into pages of 2 MiB, or put those together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demotion {
    /// Pages of 1 GiB of the pools, in either form.
    pub pages: u64,
    /// What is done to them.
    pub way: Way,
}

/// What is done to pages of 1 GiB, or to their parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// All of them are taken apart.
    Demote,
    /// All of them are put together, the pool being in the order in which they were taken apart.
    Promote,
    /// The same for every second of them: a part of each other one is in use. The pool is in an order by chance.
    PromoteScattered,
}

impl Demotion {
    /// Pages of 1 GiB that are changed.
    pub fn wanted(self) -> u64 {
        if self.way == Way::PromoteScattered { self.pages.div_ceil(2) } else { self.pages }
    }
}
