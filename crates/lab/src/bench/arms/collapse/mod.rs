//! Arms of the experiment `collapse-thp`.

mod call;
mod linux;
mod quire;

use serde_json::json;

use crate::bench::experiment::{Arm, Case};
use crate::bench::linux::verbs::Linux;
use crate::bench::memory::Memory;
use crate::bench::ours::verbs::{self, DEFAULT};

pub use call::{bring_in, by_kernel as collapse_by_kernel};

/// What is collapsed.
#[derive(Clone, Copy, Debug)]
pub struct Collapsing {
    /// The memory, populated as in a case of anonymous memory.
    pub memory: Memory,
    /// Uses shared memory instead, of which each page was written once in order of address.
    pub file: bool,
}

impl Collapsing {
    /// The case of this.
    pub fn case(self) -> Case<Self> {
        let modifier = if self.file { "/file" } else { "" };
        self.memory.case(modifier, &[("file", json!(self.file))], self)
    }
}

/// Every arm. The checksum of a repetition is the number of pages that folios of 2 MiB map afterwards.
pub fn all() -> Vec<Box<dyn Arm<Collapsing>>> {
    let mut arms = verbs::arms::<quire::Collapse>(&[DEFAULT]);
    arms.push(Linux::arm(&linux::COLLAPSE));
    arms
}
