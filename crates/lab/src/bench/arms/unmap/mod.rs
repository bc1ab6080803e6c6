//! Arms of the experiment `unmap`.

mod linux;
mod quire;

use crate::bench::experiment::Arm;
use crate::bench::linux::verbs::Linux;
use crate::bench::memory::Memory;
use crate::bench::ours::verbs::{self, ZAPS};

/// Unmap populated memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unmap {
    /// The memory.
    pub memory: Memory,
    /// Bytes that each call unmaps, a divisor of the memory's; all of them, for one call.
    pub each: usize,
}

/// Every arm. The checksum of a repetition is the number of pages that were mapped, written, and then unmapped.
pub fn all() -> Vec<Box<dyn Arm<Unmap>>> {
    let mut arms = verbs::arms::<quire::Munmap>(ZAPS);
    arms.push(Linux::arm(&linux::UNMAP));
    arms
}
