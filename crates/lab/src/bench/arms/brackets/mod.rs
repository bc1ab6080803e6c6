//! The arm of the experiment `brackets`: a verb takes a guest's memory away, or a right to it, while virtual CPUs touch it.

mod quire;
mod verbs;

use crate::bench::experiment::{Arm, Better, Metric};

/// Nanoseconds between start and end of a bracket: the median.
pub const BRACKET: Metric = lower("bracket", "ns");
/// What 99 of 100 brackets take at most.
pub const P99: Metric = lower("p99", "ns");
/// The longest bracket.
pub const LONGEST: Metric = lower("longest", "ns");
/// Of the time of the calls, the share in which a bracket was open.
pub const HELD: Metric = lower("held", "%");
/// Brackets of a call.
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
    /// `mprotect` to read alone.
    Mprotect,
    /// `mremap` to another place.
    Mremap,
    /// `fork`: all private memory loses the right to store.
    Fork,
    /// Reclaim of pages of a file that are mapped.
    Reclaim,
    /// Migration of one page to another frame.
    Migrate,
    /// A file is cut off.
    Truncate,
    /// A frame goes bad.
    MemoryFailure,
    /// Collapse by copy into a folio of 2 MiB.
    CollapseCopy,
    /// Collapse of a huge page that is mapped in parts.
    CollapseParts,
}

impl Verb {
    /// All of them, and their names.
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

    /// Whether the memory is a file's that can be read again, which a store would make dirty.
    const fn reads_only(self) -> bool {
        matches!(self, Self::Reclaim)
    }
}

/// Calls of one verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Brackets {
    /// The verb.
    pub verb: Verb,
    /// The guest's memory, a multiple of 2 MiB. A call takes 2 MiB of it, in turn; a fork all, a migration and a failure one page.
    pub bytes: u64,
    /// How often it is called.
    pub calls: u64,
    /// The processor of the virtual CPU.
    pub touched_on: usize,
    /// Decides what it touches.
    pub seed: u64,
}

/// Every arm. The checksum of a repetition is the number of calls that did their work.
pub fn all() -> Vec<Box<dyn Arm<Brackets>>> {
    vec![Box::new(quire::Quire)]
}
