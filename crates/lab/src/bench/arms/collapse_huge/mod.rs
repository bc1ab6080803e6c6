//! Arms of the experiment `collapse`: the small leaves that map a page of 1 GiB become one leaf again.

mod as_posted;
mod linux;
mod names;
mod ours;

use quire::page_alloc::CountScheme;
use quire::vm::CollapseSteps;

use crate::bench::experiment::{Arm, Better, Metric};
use crate::bench::linux::verbs::Linux;

pub use names::name_of;

/// The longest time between two reschedule points, the call's start or its end: an upper bound on how long
/// one step held the lock.
pub const STEP: Metric = Metric { name: "step", unit: "ns", better: Better::Lower };
/// The longest access that met the collapse, by a CPU that touches the page all the time. The longest of all
/// repetitions counts.
pub const STALL: Metric = Metric { name: "worst-stall", unit: "ns", better: Better::Lower };

/// Which leaves replace the 262 144 leaves of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// Leaves of 2 MiB.
    Large,
    /// One leaf of 1 GiB.
    Gigantic(CollapseSteps),
}

/// Collapse a page of 1 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collapse {
    /// The leaves that it makes.
    pub to: To,
    /// Address spaces that map the page by small leaves; one of them collapses its mapping.
    pub spaces: usize,
    /// Another CPU, bound to this processor, touches the page meanwhile.
    pub touched_on: Option<usize>,
    /// A virtual CPU does so instead, through second-stage tables.
    pub virtual_cpu: bool,
    /// The first bytes of the page, which the virtual CPU uses.
    pub guest_bytes: u64,
    /// Tables that are collapsed one instruction at a time, to count the locked ones; none in most cases of a small
    /// run.
    pub stepped: u64,
}

/// Every arm. The checksum of a repetition is the number of 4 KiB pages that larger leaves map.
pub fn all() -> Vec<Box<dyn Arm<Collapse>>> {
    let mut arms: Vec<Box<dyn Arm<Collapse>>> =
        CountScheme::ALL.map(|counts| Box::new(ours::Quire { counts }) as Box<dyn Arm<Collapse>>).into();
    arms.insert(1, Box::new(ours::Direct));
    arms.push(Box::new(ours::AsPosted));
    arms.push(Linux::arm(&linux::COLLAPSE));
    arms
}
