//! The tracepoints of the lock that orders all changes of an address space.
//!
//! Every call that changes mappings holds the lock for writing while it does, and both events come from inside the
//! locked section. A lock that is downgraded is told as one that is taken for reading; only for that, and for calls that
//! discard pages, are those of readers of use. Most faults take the lock of their mapping alone, which is not told.

use super::RecordError;
use super::tracefs::{Field, Tracefs, Tracepoint};

/// Only locks that were got.
pub(super) const TAKEN: &str = "success == 1";

/// Only the ends of changes.
pub(super) const RELEASED: &str = "write == 1";

/// For messages.
pub(super) const WHAT: &str = "the order of calls";

/// Where a kernel tells that it takes and releases the lock.
pub(super) struct LockTracepoints {
    pub(super) taken: Tracepoint,
    pub(super) released: Tracepoint,
}

impl LockTracepoints {
    /// Both, or neither: kernels before 5.11 and those built without them tell nothing of it.
    pub(super) fn find(tracefs: &Tracefs) -> Option<LockTracepoints> {
        let taken = tracefs.tracepoint("mmap_lock/mmap_lock_acquire_returned").ok()?;
        let released = tracefs.tracepoint("mmap_lock/mmap_lock_released").ok()?;
        Some(LockTracepoints { taken, released })
    }

    pub(super) fn taken_mm(&self) -> Result<Field, RecordError> {
        self.taken.field("mm")
    }

    pub(super) fn taken_write(&self) -> Result<Field, RecordError> {
        self.taken.field("write")
    }

    pub(super) fn released_mm(&self) -> Result<Field, RecordError> {
        self.released.field("mm")
    }
}
