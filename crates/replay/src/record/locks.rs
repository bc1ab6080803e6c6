//! The tracepoints of the lock that orders all changes of an address space.
//!
//! Every call that changes mappings holds the lock for writing meanwhile, and both events come from inside
//! the locked section. One moment of it is enough, so taking the lock for writing is not recorded. A downgrade is
//! reported as taking the lock for reading; readers' events serve only for that and for calls that discard
//! pages. Most faults take only the lock of their mapping, which has no event.

use super::RecordError;
use super::tracefs::{Field, Tracefs, Tracepoint};

/// Filter: only locks that were taken for reading.
pub(super) const TAKEN: &str = "write == 0 && success == 1";

/// Filter: only the ends of changes.
pub(super) const RELEASED: &str = "write == 1";

/// For messages.
pub(super) const WHAT: &str = "the order of calls";

/// The tracepoints for taking and releasing the lock.
pub(super) struct LockTracepoints {
    pub(super) taken: Tracepoint,
    pub(super) released: Tracepoint,
}

impl LockTracepoints {
    /// Both, or `None`: kernels before 5.11 and those built without them have neither.
    pub(super) fn find(tracefs: &Tracefs) -> Option<LockTracepoints> {
        let taken = tracefs.tracepoint("mmap_lock/mmap_lock_acquire_returned").ok()?;
        let released = tracefs.tracepoint("mmap_lock/mmap_lock_released").ok()?;
        Some(LockTracepoints { taken, released })
    }

    pub(super) fn taken_mm(&self) -> Result<Field, RecordError> {
        self.taken.field("mm")
    }

    pub(super) fn released_mm(&self) -> Result<Field, RecordError> {
        self.released.field("mm")
    }
}
