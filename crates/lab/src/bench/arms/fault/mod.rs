//! Arms of the experiment `fault`.

mod linux;
mod quire;

use crate::bench::experiment::{Arm, Better, Metric};
use crate::bench::folio::Folio;

/// Populate `bytes` of fresh anonymous memory with folios like `folio`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Bytes to populate, a multiple of 2 MiB.
    pub bytes: usize,
    /// Size and mapping of the folios.
    pub folio: Folio,
    /// How it is populated.
    pub populate: Populate,
}

/// Nanoseconds of the same work where nothing is cleared.
pub const UNCLEARED: Metric = Metric { name: "without-clearing", unit: "ns", better: Better::Lower };

/// How memory is populated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Populate {
    /// A write to every page in order of address: one fault per folio.
    Touch,
    /// One call for the whole range.
    Call,
}

/// Every arm. The checksum of a repetition is the number of pages that were populated and hold what was written.
pub fn all() -> Vec<Box<dyn Arm<Fault>>> {
    vec![Box::<quire::Quire>::default(), Box::<linux::Linux>::default()]
}
