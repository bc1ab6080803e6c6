//! Arms of the experiments `hugetlb-pool`, `demote` and `hugetlb-churn`: pools of huge pages, Quire's and the
//! running kernel's.

pub mod beside;
mod busy;
mod case;
mod churned;
mod counts;
mod demote;
mod demote_linux;
mod ground;
mod kernel;
mod linux;
pub mod price;
mod quire;

use crate::bench::experiment::Arm;
use kernel::kernels;

pub use case::{Demotion, Pools, REQUEST, Way};

/// Every arm of `hugetlb-pool`. The checksum of a repetition is the number of pages.
pub fn all() -> Vec<Box<dyn Arm<Pools>>> {
    let mut arms = quire::all();
    arms.extend(linux::all());
    arms
}

/// Every arm of `demote`. The checksum of a repetition is the number of pages of 1 GiB that were changed.
pub fn demotions() -> Vec<Box<dyn Arm<Demotion>>> {
    let mut arms = demote::all();
    arms.extend(kernels().map(|kernel| Box::new(demote_linux::Linux { kernel }) as Box<dyn Arm<Demotion>>));
    arms
}
