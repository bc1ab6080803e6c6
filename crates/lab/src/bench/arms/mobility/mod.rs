//! Arms of the experiment `mobility`.

mod load;
mod quire;
mod storm;

use crate::bench::experiment::{Arm, Better, Metric};

/// Blocks of 2 MiB that are whole and free at the end.
pub const WHOLE: Metric = Metric { name: "whole-blocks", unit: "blocks", better: Better::Higher };

/// The share of the areas of 1 GiB in which no unmovable or reclaimable frame is in use at the end.
pub const UNTAINTED: Metric = Metric { name: "untainted-areas", unit: "%", better: Better::Higher };

/// Short- and long-lived folios of every mobility in one memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mobilities {
    /// Bytes of memory.
    pub bytes: u64,
    /// The load.
    pub load: Load,
    /// Seed of all requests.
    pub seed: u64,
}

/// What is allocated and freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// So many rounds, each of which makes one request for every eight frames of the memory.
    Rounds(usize),
    /// Movable folios age the memory; then unmovable and reclaimable frames are allocated among them, 2 % of
    /// all.
    Storm,
}

/// Every arm. The checksum of a repetition is the number of requests.
pub fn all() -> Vec<Box<dyn Arm<Mobilities>>> {
    vec![Box::new(quire::Quire::grouping()), Box::new(quire::Quire::mixing())]
}
