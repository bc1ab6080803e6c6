//! The arm of the experiment `brackets`: a verb unmaps or write-protects a guest's memory while virtual CPUs
//! touch it.

mod quire;
mod verbs;

use crate::bench::experiment::{Arm, Better, Metric};

/// Nanoseconds between start and end of a bracket: the median.
pub const BRACKET: Metric = lower("bracket", "ns");
/// The 99th percentile of the brackets.
pub const P99: Metric = lower("p99", "ns");
/// The longest bracket.
pub const LONGEST: Metric = lower("longest", "ns");
/// The share of the calls' time in which a bracket was open.
pub const HELD: Metric = lower("held", "%");
/// Brackets in each call.
pub const EACH: Metric = lower("each", "brackets");
/// The longest access of a virtual CPU that had to wait for a leaf.
pub const STALL: Metric = lower("stall", "ns");

const fn lower(name: &'static str, unit: &'static str) -> Metric {
    Metric { name, unit, better: Better::Lower }
}

/// What is done to the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// `munmap`.
    Munmap,
    /// `MADV_DONTNEED`.
    DontNeed,
    /// `mprotect` to read-only.
    Mprotect,
    /// `mremap` to another place.
    Mremap,
    /// `fork`: all private memory becomes read-only.
    Fork,
    /// Reclaim of pages of a file that are mapped.
    Reclaim,
    /// Migration of one page to another frame.
    Migrate,
    /// `ftruncate` of the file.
    Truncate,
    /// Memory failure of a frame.
    MemoryFailure,
    /// Collapse by copy into a folio of 2 MiB.
    CollapseCopy,
    /// Collapse of a huge page that is mapped in parts.
    CollapseParts,
}

impl Verb {
    /// Every verb and its name.
    pub const ALL: [(&'static str, Self); 11] = [
        ("munmap", Self::Munmap),
        ("dontneed", Self::DontNeed),
        ("mprotect", Self::Mprotect),
        ("mremap", Self::Mremap),
        ("fork", Self::Fork),
        ("reclaim", Self::Reclaim),
        ("migrate", Self::Migrate),
        ("truncate", Self::Truncate),
        ("memory-failure", Self::MemoryFailure),
        ("collapse-copy", Self::CollapseCopy),
        ("collapse-parts", Self::CollapseParts),
    ];

    /// Whether the memory is a file's clean cache, which a store would make dirty.
    const fn reads_only(self) -> bool {
        matches!(self, Self::Reclaim)
    }
}

/// Calls of one verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Brackets {
    /// The verb.
    pub verb: Verb,
    /// The guest's memory, a multiple of 2 MiB. A call works on the next 2 MiB; `fork` on all, migration and
    /// failure on one page.
    pub bytes: u64,
    /// Number of calls.
    pub calls: u64,
    /// The processor of the virtual CPU.
    pub touched_on: usize,
    /// Seed of its accesses.
    pub seed: u64,
}

/// Every arm. The checksum of a repetition is the number of calls that did their work.
pub fn all() -> Vec<Box<dyn Arm<Brackets>>> {
    vec![Box::new(quire::Quire)]
}
