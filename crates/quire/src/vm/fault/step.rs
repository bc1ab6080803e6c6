//! What a fault is asked for, what it did, and what is left to do before it can be tried again.
#![forbid(unsafe_code)]

use crate::addr::{Frame, FrameRange, Order};
use crate::vm::gigantic::state::Cleared;
use crate::vm::userfault::Waiting;

/// For what memory is brought in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::vm) enum Caller {
    /// An access, which goes on at once.
    Access,
    /// A call that brings in this many bytes, which the program may use or not.
    Populate {
        /// All that is brought in together.
        bytes: u64,
    },
}

/// How a fault was made good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// The zero frame was mapped for a read of untouched memory.
    AnonZero,
    /// A folio of zeroes was mapped.
    Anon,
    /// A page that others map, or the zero frame, was copied.
    Cow,
    /// A write-protected page with no other mapping was made writable.
    Reuse,
    /// A page of the page cache was mapped.
    FileMinor,
    /// As before, after it was read from the pager.
    FileMajor,
    /// The access was possible already: another CPU was faster, or this one had an old translation.
    Spurious,
}

/// What a fault did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FaultOutcome {
    /// The order of the folio (or the leaf) that the address is in now.
    pub order: Order,
    /// How it came there.
    pub kind: FaultKind,
}

/// One attempt.
pub(in crate::vm) enum Step {
    /// The access is possible now.
    Done(FaultOutcome),
    /// Something changed meanwhile: look again.
    Again,
    /// The last piece of a gigantic folio is done: call
    /// [`GiganticClearing::end_clear`](crate::vm::GiganticClearing), holding no lock, and look again.
    Cleared(Cleared),
    /// Some of the folio's memory went bad before it was mapped: call
    /// [`MemoryLoss::lose_marked`](crate::vm::MemoryLoss), holding no lock, and look again.
    Marked(FrameRange),
    /// The table is shared with another address space: call
    /// [`Faults::unshare_at`](crate::vm::fault::faults::Faults), holding no lock, and look again.
    Shared,
    /// The pool has no page for a copy of this one, which was reserved to the caller: call
    /// [`Faults::take_back`](crate::vm::fault::faults::Faults), holding no lock, and look again.
    TakeBack(Frame),
    /// A handler was told: call [`Contexts::wait`](crate::vm::userfault::Contexts::wait), holding no lock,
    /// and look again.
    Handler(Waiting),
}

impl Step {
    pub(in crate::vm) const fn done(order: Order, kind: FaultKind) -> Self {
        Self::Done(FaultOutcome { order, kind })
    }
}
