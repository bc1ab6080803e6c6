//! Arms of the experiment `aged`: verbs on memory that has lived.

mod life;
mod linux;
mod quire;

use crate::bench::experiment::{Arm, Better, Metric};
use crate::bench::folio::{Folio, PAGE};
use crate::bench::memory::Memory;

/// Nanoseconds of the first of two calls: of `mprotect`, the one that takes the right to write.
const READ_ONLY: Metric = Metric { name: "read-only", unit: "ns", better: Better::Lower };

/// Other address spaces, which get their frames by turns.
const SPACES: usize = 4;

/// Pages that one of them gets in a turn.
const TURN: usize = 16;

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
    /// Bytes of other address spaces together, which were populated before, by turns. A random half of their frames is
    /// still in use, so the case finds single free frames between them.
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
    /// `MADV_COLLAPSE` into folios of 2 MiB.
    Collapse,
    /// A write to each page in order of address, after all were dropped, untimed: single frames.
    Fault,
}

impl Verb {
    /// Every verb, and its name.
    pub const ALL: [(Self, &'static str); 8] = [
        (Self::Unmap, "unmap"),
        (Self::DontNeed, "dontneed"),
        (Self::Exit, "exit"),
        (Self::Fork, "fork"),
        (Self::Protect, "protect"),
        (Self::Move, "move"),
        // Last, since their machine is another one.
        (Self::Collapse, "collapse"),
        (Self::Fault, "fault"),
    ];

    /// Whether it clears or copies frames.
    const fn writes(self) -> bool {
        matches!(self, Self::Collapse | Self::Fault)
    }

    /// Whether it unmaps pages.
    const fn unmaps(self) -> bool {
        matches!(self, Self::Unmap | Self::DontNeed | Self::Exit)
    }
}

impl Aged {
    fn pages(&self) -> usize {
        self.bytes / PAGE
    }

    /// Turns in which each of the other address spaces gets its pages.
    fn turns(&self) -> usize {
        self.other_bytes / PAGE / SPACES / TURN
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
