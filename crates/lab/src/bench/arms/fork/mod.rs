//! Arms of the experiment `fork`.

mod linux;
mod quire;

use crate::bench::experiment::{Arm, Better, Metric, Sample};
use crate::bench::linux::verbs::Linux;
use crate::bench::memory::Memory;
use crate::bench::ours::verbs::{self, FORKS};

/// Nanoseconds of the fork itself, where writes follow.
const FORK: Metric = Metric { name: "fork", unit: "ns", better: Better::Lower };

/// Nanoseconds of the child's first writes.
const WRITES: Metric = Metric { name: "writes", unit: "ns", better: Better::Lower };

/// Nanoseconds of a fork without the memory.
const EMPTY: Metric = Metric { name: "empty", unit: "ns", better: Better::Lower };

/// Fork an address space with populated memory, and write to some of its pages in the child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fork {
    /// The parent's memory.
    pub memory: Memory,
    /// The child writes to every page whose number is a multiple of this; `None`: to no page.
    pub every: Option<usize>,
}

impl Fork {
    /// The pages that the child writes to, in order.
    fn written(&self) -> impl Iterator<Item = usize> + use<> {
        let pages = if self.every.is_some() { self.memory.pages() } else { 0 };
        (0..pages).step_by(self.every.unwrap_or(1))
    }

    /// Adds the metrics to a sample whose time is fork and writes together.
    fn metrics(&self, sample: Sample, fork: f64, writes: f64, empty: f64) -> Sample {
        match self.every {
            None => sample.metric(EMPTY, empty),
            Some(_) => sample.metric(FORK, fork).metric(WRITES, writes),
        }
    }
}

/// Every arm. The checksum of a repetition is the parent's pages plus the pages that the child wrote.
pub fn all() -> Vec<Box<dyn Arm<Fork>>> {
    let mut arms = verbs::arms::<quire::Forking>(FORKS);
    arms.push(Linux::arm(&linux::FORK));
    arms
}
