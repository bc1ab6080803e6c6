//! Arms of the experiments `first-touch` and `mlock-gigantic`: folios of 1 GiB, Quire's and the running
//! kernel's.

mod busy;
mod first;
mod first_linux;
mod ground;
mod locking;
mod locking_linux;

use std::rc::Rc;

use crate::bench::arms::clear::Setting;
use crate::bench::arms::clear::huge::Chooser;
use crate::bench::experiment::Arm;
use ground::Shared;
use locking_linux::HugeTlb;

pub use first::{First, What};
pub use locking::{DISTURBED, IDLE, LONGEST, Locking, PER_GIB, WAITED};

/// Arms that touch fresh memory. The checksum is the number of marks that read as zero afterwards.
pub fn firsts(setting: &Setting) -> Vec<Box<dyn Arm<First>>> {
    let shared = Rc::new(Shared::new(setting));
    let chooser = Chooser::default();
    // First, while most memory is contiguous.
    let mut arms = first_linux::all(&chooser);
    arms.extend(first::all(&shared));
    arms
}

/// Arms that lock fresh memory. A case that names a stretch has no arm of the running kernel, whose stretch
/// is its own. The checksum is the number of marks that read as zero afterwards.
pub fn lockings(setting: &Setting, swept: bool) -> Vec<Box<dyn Arm<Locking>>> {
    let shared = Rc::new(Shared::new(setting));
    let mut arms: Vec<Box<dyn Arm<Locking>>> = Vec::new();
    if !swept {
        arms.push(Box::new(HugeTlb { chooser: Chooser::default(), shared: shared.clone() }));
    }
    arms.extend(locking::all(&shared, swept));
    arms
}
