//! For what a fault brings memory in, what it did, and what the caller must do before it tries again.
#![forbid(unsafe_code)]

use crate::addr::{Frame, FrameRange, Order};
use crate::filemap::FileRef;
use crate::hugetlb::HugeSize;
use crate::page_alloc::NodePolicy;
use crate::vm::gigantic::state::Cleared;
use crate::vm::userfault::Waiting;

/// The reason to bring memory in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::vm) enum Caller {
    /// An access that is waiting for it.
    Access,
    /// A call that populates memory, which the program may never touch.
    Populate {
        /// All bytes of the call together.
        bytes: u64,
    },
}

/// How a fault was resolved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// The zero frame was mapped for a read of untouched memory.
    AnonZero,
    /// A folio of zeroes was mapped.
    Anon,
    /// A page with other mappings, or the zero frame, was copied.
    Cow,
    /// A write-protected page with no other mapping was made writable.
    Reuse,
    /// A page of the page cache was mapped.
    FileMinor,
    /// A page was read from the pager and mapped.
    FileMajor,
    /// The access was possible already: another CPU was faster, or this CPU had an old translation.
    Spurious,
}

impl FaultKind {
    /// The names of all kinds in tables, in their order.
    pub const NAMES: [&str; 7] =
        ["anon-zero", "anon", "cow-copy", "cow-reuse", "file-minor", "file-major", "spurious"];

    /// The name in tables.
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// What a fault did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FaultOutcome {
    /// The order of the folio (or the leaf) that the address is in now.
    pub order: Order,
    /// How the fault was resolved.
    pub kind: FaultKind,
}

/// The outcome of one attempt. [`Faults::prepare_retry`](crate::vm::fault::faults::Faults) does what a
/// variant asks for, holding no lock.
pub(in crate::vm) enum Step {
    /// The access is possible now.
    Done(FaultOutcome),
    /// Something changed meanwhile: try again.
    Again,
    /// No mapping holds the address: let a stack grow down to it.
    Grow,
    /// The last piece of a gigantic folio is done: end its clear.
    Cleared(Cleared),
    /// The pool of this size has no page that is known to be zero: clear one.
    ClearHuge {
        size: HugeSize,
        /// The nodes of the page, and whose turn it is where they take turns.
        nodes: (NodePolicy, u64),
        caller: Caller,
    },
    /// A piece of this page of a pool is claimed at the address: clear it.
    ClearBlock { page: Frame, caller: Caller },
    /// All pieces of the page of a pool around the address are mapped: make one leaf of them.
    Complete,
    /// This page of a file is in pieces, or a table is in the way of its leaf: complete it, and map it whole.
    Whole(Frame),
    /// Some of the folio's memory went bad before it was mapped: take it out of use.
    Marked(FrameRange),
    /// The table is shared with another address space: unshare it.
    Shared,
    /// The pool has no page for a copy of this one, which was reserved to the caller: take that from its
    /// sharers.
    TakeBack(Frame),
    /// The page with this index is not in memory, or in use by one task alone: read it, or wait.
    Read(FileRef, u64),
    /// A handler was told: wait for it.
    Handler(Waiting),
}

impl Step {
    pub(in crate::vm) const fn done(order: Order, kind: FaultKind) -> Self {
        Self::Done(FaultOutcome { order, kind })
    }
}
