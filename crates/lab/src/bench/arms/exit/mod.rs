//! Arms of the experiment `exit`.

mod linux;
mod quire;

use crate::bench::experiment::{Arm, Better, Metric};
use crate::bench::memory::Memory;
use crate::bench::ours::verbs::{self, ZAPS};

/// Nanoseconds of an exit without the memory.
const EMPTY: Metric = Metric { name: "empty", unit: "ns", better: Better::Lower };

/// Every arm. The checksum of a repetition is the number of pages that were mapped and written.
pub fn all() -> Vec<Box<dyn Arm<Memory>>> {
    let mut arms = verbs::arms::<quire::Exit>(ZAPS);
    arms.push(Box::<linux::Linux>::default());
    arms
}
