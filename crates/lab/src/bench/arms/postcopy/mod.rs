//! Arms of the experiment `postcopy`: a guest runs on memory that is still being transferred, in pieces of
//! one size.

mod case;
mod guest;
pub mod link;
mod linux;
mod outcome;
mod quire;
mod receiver;
mod uffd;

use crate::bench::experiment::Arm;

pub use case::{IDLE, LARGE, LONGEST, Migration, P99, STALL, THERE};

/// Every arm. The checksum is the sum of one word of each 4 KiB that the guest reads at the end.
pub fn all() -> Vec<Box<dyn Arm<Migration>>> {
    let mut arms = quire::all();
    for wait in [case::Wait::Sleep, case::Wait::Poll] {
        arms.push(Box::new(linux::Linux { wait }));
    }
    arms
}
