//! Arms of the experiment `mobility`.

mod load;
mod quire;

use crate::bench::experiment::{Arm, Better, Metric};

/// Blocks of 2 MiB that are whole and free at the end.
pub const WHOLE: Metric = Metric { name: "whole-blocks", unit: "blocks", better: Better::Higher };

/// Short- and long-lived folios of every mobility in one memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mobilities {
    /// Bytes of memory.
    pub bytes: u64,
    /// Rounds, each of which makes one request for every eight frames of the memory.
    pub rounds: usize,
    /// Seed of all requests.
    pub seed: u64,
}

/// Every arm. The checksum of a repetition is the number of requests.
pub fn all() -> Vec<Box<dyn Arm<Mobilities>>> {
    vec![Box::new(quire::Quire::grouping()), Box::new(quire::Quire::mixing())]
}
