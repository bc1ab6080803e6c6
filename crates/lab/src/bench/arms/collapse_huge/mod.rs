//! Arms of the experiment `collapse`: one page of 1 GiB that is mapped in pieces is put together again.

mod linux;
mod ours;

use quire::page_alloc::CountScheme;
use quire::vm::CollapseSteps;

use crate::bench::experiment::{Arm, Better, Metric};
use crate::bench::linux::verbs::Linux;

/// The longest time between two reschedule points, or from the call's start or to its end: how long one step held the lock at
/// most.
pub const STEP: Metric = Metric { name: "step", unit: "ns", better: Better::Lower };
/// The longest access, of a CPU that touches the page all the time, that met the collapse.
pub const STALL: Metric = Metric { name: "stall", unit: "ns", better: Better::Lower };

/// What becomes of the 262 144 leaves of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// Leaves of 2 MiB.
    Large,
    /// One leaf.
    Gigantic(CollapseSteps),
}

/// Collapse a page of 1 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collapse {
    /// To what.
    pub to: To,
    /// Address spaces that map the page in pieces; one of them collapses it.
    pub spaces: usize,
    /// Another CPU, bound to this processor, touches it meanwhile.
    pub touched_on: Option<usize>,
    /// A virtual CPU does, through second-stage tables, in the place of that.
    pub virtual_cpu: bool,
}

/// The name of an arm that counts so.
pub fn name_of(counts: CountScheme) -> &'static str {
    match counts {
        CountScheme::Dense => "quire",
        CountScheme::PerFrame => "per-frame",
        CountScheme::HeadOnly => "head-only",
        CountScheme::HeadOnlyByLeaf => "head-only-by-leaf",
    }
}

/// Every arm. The checksum of a repetition is the number of 4 KiB that larger leaves map.
pub fn all() -> Vec<Box<dyn Arm<Collapse>>> {
    let mut arms: Vec<Box<dyn Arm<Collapse>>> =
        CountScheme::ALL.map(|counts| Box::new(ours::Quire { counts }) as Box<dyn Arm<Collapse>>).into();
    arms.insert(1, Box::new(ours::Direct));
    arms.push(Linux::arm(&linux::COLLAPSE));
    arms
}
