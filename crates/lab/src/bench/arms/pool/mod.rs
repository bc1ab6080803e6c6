//! Arms of the experiments `hugetlb-pool`, `demote` and `hugetlb-churn`: pools of huge pages, of ours and of the running kernel.

pub mod beside;
mod busy;
mod counts;
mod demote;
mod demote_linux;
mod ground;
mod kernel;
mod linux;
mod quire;

use std::rc::Rc;

use crate::bench::arms::clear::huge::Chooser;
use crate::bench::experiment::{Arm, Better, Metric};
use kernel::Kernel;

/// Nanoseconds of the whole request.
pub const REQUEST: Metric = Metric { name: "request", unit: "ns", better: Better::Lower };
/// Bytes of a page of the pool.
const PAGE_BYTES: u64 = 2 << 20;
/// Pages of 2 MiB of a page of 1 GiB.
const PARTS: u64 = 512;

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

/// Every arm of `hugetlb-pool`. The checksum of a repetition is the number of pages.
pub fn all() -> Vec<Box<dyn Arm<Pools>>> {
    let mut arms = quire::all();
    arms.extend(kernels().map(|kernel| Box::new(linux::Linux { kernel }) as Box<dyn Arm<Pools>>));
    arms
}

/// Every arm of `demote`. The checksum of a repetition is the number of pages of 1 GiB that were changed.
pub fn demotions() -> Vec<Box<dyn Arm<Demotion>>> {
    let mut arms = demote::all();
    arms.extend(kernels().map(|kernel| Box::new(demote_linux::Linux { kernel }) as Box<dyn Arm<Demotion>>));
    arms
}

/// The running kernel, with the saving off and on.
fn kernels() -> impl Iterator<Item = Kernel> {
    let chooser = Chooser::default();
    [false, true].into_iter().map(move |saving| Kernel::new(Rc::clone(&chooser), saving))
}
