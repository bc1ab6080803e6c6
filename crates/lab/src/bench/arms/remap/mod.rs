//! Arms of the experiment `move`.

mod linux;
mod quire;

use crate::bench::experiment::Arm;
use crate::bench::memory::Memory;
use crate::bench::ours::verbs::{self, DEFAULT};

/// Move populated memory to another address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The memory; it starts at a multiple of 1 GiB.
    pub memory: Memory,
    /// Offset of the target from a multiple of 1 GiB: 0, 2 MiB or 4 KiB.
    pub beyond: usize,
}

/// Every arm. The checksum of a repetition is the number of pages that moved.
pub fn all() -> Vec<Box<dyn Arm<Move>>> {
    let mut arms = verbs::arms::<quire::Mremap>(&[DEFAULT]);
    arms.push(Box::<linux::Linux>::default());
    arms
}
