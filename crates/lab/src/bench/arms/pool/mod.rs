//! Arms of the experiment `hugetlb-pool`.

mod busy;
mod linux;
mod quire;

use std::rc::Rc;

use crate::bench::arms::clear::huge::Chooser;
use crate::bench::experiment::{Arm, Better, Metric};

/// Nanoseconds of the whole request.
pub const REQUEST: Metric = Metric { name: "request", unit: "ns", better: Better::Lower };
/// Bytes of a page of the pool.
const PAGE_BYTES: u64 = 2 << 20;

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

/// Every arm. The checksum of a repetition is the number of pages.
pub fn all() -> Vec<Box<dyn Arm<Pools>>> {
    let mut arms = quire::all();
    let chooser = Chooser::default();
    let running =
        |saving| -> Box<dyn Arm<Pools>> { Box::new(linux::Linux::new(Rc::clone(&chooser), saving)) };
    arms.extend([false, true].map(running));
    arms
}
