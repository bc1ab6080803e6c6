//! Arms of the experiment `mapcount`: the cost of each way of counting for the verbs that change counts.

mod ours;

use quire::page_alloc::CountScheme;

use crate::bench::experiment::Arm;

/// What is done to a page of 1 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Maps it by 4 KiB leaves, a table at a time.
    Map,
    /// The same, one leaf at a time.
    MapEach,
    /// Maps each leaf in two address spaces when its contents arrive, in random order.
    Arrive,
    /// Collapses those leaves into one in both.
    Arrived,
    /// Unmaps all its 4 KiB leaves.
    Unmap,
    /// Copies all its leaves to another address space.
    Fork,
    /// Collapses the leaves into one.
    Collapse,
}

impl Verb {
    /// Every verb.
    pub const ALL: [Self; 7] =
        [Self::Map, Self::MapEach, Self::Arrive, Self::Arrived, Self::Unmap, Self::Fork, Self::Collapse];

    /// Its name as a case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Map => "map",
            Self::MapEach => "map-each",
            Self::Arrive => "arrive",
            Self::Arrived => "collapse-arrived",
            Self::Unmap => "unmap",
            Self::Fork => "fork",
            Self::Collapse => "collapse",
        }
    }
}

/// Every arm. The checksum of a repetition is the number of leaves.
pub fn all() -> Vec<Box<dyn Arm<Verb>>> {
    CountScheme::ALL.map(|counts| Box::new(ours::Quire { counts }) as Box<dyn Arm<Verb>>).into()
}
