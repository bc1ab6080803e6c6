//! Arms of the experiment `dontneed`.

mod linux;
mod quire;

use crate::bench::experiment::Arm;
use crate::bench::linux::verbs::Linux;
use crate::bench::memory::Memory;
use crate::bench::ours::verbs::{self, ZAPS};

/// Every arm. The checksum of a repetition is the number of pages that were written and then dropped.
pub fn all() -> Vec<Box<dyn Arm<Memory>>> {
    let mut arms = verbs::arms::<quire::DontNeed>(ZAPS);
    arms.push(Linux::arm(&linux::DONTNEED));
    arms
}
