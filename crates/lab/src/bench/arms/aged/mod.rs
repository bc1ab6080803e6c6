//! Arms of the experiment `aged`: verbs on memory that has lived.

mod life;
mod linux;
mod quire;

use crate::bench::experiment::{Arm, Better, Metric};
use crate::bench::folio::{Folio, PAGE};
use crate::bench::memory::Memory;

/// Nanoseconds of the first of two calls: of `mprotect`, the one that takes the right to write.
const READ_ONLY: Metric = Metric { name: "read-only", unit: "ns", better: Better::Lower };

/// A verb on memory that has lived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aged {
    /// The verb.
    pub verb: Verb,
    /// Bytes that it works on, a multiple of 2 MiB.
    pub bytes: usize,
    /// Whether an eighth of it was populated by folios of 2 MiB and a quarter by folios of 64 KiB; else all is single
    /// frames.
    pub mixed: bool,
    /// Bytes of other memory that was populated before. A random half of its frames is still in use, so the case
    /// finds single free frames between them.
    pub other_bytes: usize,
}

/// What is done to the whole memory, by one call if not said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// `munmap`.
    Unmap,
    /// `MADV_DONTNEED`.
    DontNeed,
    /// The end of its process.
    Exit,
    /// `fork`.
    Fork,
    /// `mprotect` to read-only, and back.
    Protect,
    /// `mremap` to an address with the same offset in 1 GiB.
    Move,
}

impl Verb {
    /// Every verb, and its name.
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::Unmap, "unmap"),
        (Self::DontNeed, "dontneed"),
        (Self::Exit, "exit"),
        (Self::Fork, "fork"),
        (Self::Protect, "protect"),
        (Self::Move, "move"),
    ];

    /// Whether it unmaps pages.
    const fn unmaps(self) -> bool {
        matches!(self, Self::Unmap | Self::DontNeed | Self::Exit)
    }
}

impl Aged {
    fn pages(&self) -> usize {
        self.bytes / PAGE
    }

    /// The memory as the shared parts of the harness describe it: with cold caches.
    fn memory(&self) -> Memory {
        Memory { bytes: self.bytes, folio: Folio { order: 0, pmd: false }, shuffled: true, cold: true }
    }
}

/// Every arm. The checksum of a repetition is the number of pages that were mapped before the verb.
pub fn all() -> Vec<Box<dyn Arm<Aged>>> {
    let mut arms = quire::arms();
    arms.push(Box::<linux::Linux>::default());
    arms
}
