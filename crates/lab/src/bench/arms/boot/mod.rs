//! Arms of the experiment `boot`.

mod linux;
mod quire;

use crate::bench::experiment::Arm;

/// Take over an empty machine with one range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boot {
    /// Bytes of memory, a multiple of 1 GiB.
    pub bytes: u64,
}

/// Every arm. The checksum of a repetition is the number of 4 KiB frames that the manager then accounts for.
pub fn all() -> Vec<Box<dyn Arm<Boot>>> {
    vec![Box::<quire::Quire>::default(), Box::new(linux::Linux)]
}
