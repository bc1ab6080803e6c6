//! Arms of the experiment `protect`.

mod linux;
mod quire;

use crate::bench::experiment::{Arm, Better, Metric};
use crate::bench::linux::verbs::Linux;
use crate::bench::memory::Memory;
use crate::bench::ours::verbs::{self, DEFAULT};

/// Nanoseconds of the call that makes the memory read-only.
const READ_ONLY: Metric = Metric { name: "read-only", unit: "ns", better: Better::Lower };

/// Nanoseconds of the call that makes it writable again.
const BACK: Metric = Metric { name: "back", unit: "ns", better: Better::Lower };

/// Every arm. The checksum of a repetition is the number of pages that can be written again.
pub fn all() -> Vec<Box<dyn Arm<Memory>>> {
    let mut arms = verbs::arms::<quire::Protect>(&[DEFAULT]);
    arms.push(Linux::arm(&linux::PROTECT));
    arms
}
