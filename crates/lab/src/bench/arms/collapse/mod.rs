//! Arms of the experiment `collapse-thp`.

mod linux;
mod quire;

use crate::bench::experiment::Arm;
use crate::bench::linux::verbs::Linux;
use crate::bench::memory::Memory;
use crate::bench::ours::verbs::{self, DEFAULT};

pub use linux::by_kernel as collapse_by_kernel;

/// Every arm. The checksum of a repetition is the number of pages that were mapped, and are in folios of 2 MiB now.
pub fn all() -> Vec<Box<dyn Arm<Memory>>> {
    let mut arms = verbs::arms::<quire::Collapse>(&[DEFAULT]);
    arms.push(Linux::arm(&linux::COLLAPSE));
    arms
}
