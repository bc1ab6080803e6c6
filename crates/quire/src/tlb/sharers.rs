//! How many address spaces besides one reach a page table, and the steps on this number that several of them
//! may take at once. `pgtable/share.rs` describes the protocol around them.
#![forbid(unsafe_code)]

use crate::atomic::{AtomicU64, Ordering};

/// Another address space is about to reach a table that only the caller's reached.
#[inline]
pub(crate) fn begin(sharers: &AtomicU64) {
    sharers.store(1, Ordering::Relaxed);
}

/// Another address space is about to reach a table in which the caller has a share.
#[inline]
pub(crate) fn add(sharers: &AtomicU64) {
    sharers.fetch_add(1, Ordering::Relaxed);
}

/// Whether the caller's address space is the only one left with a share. Then no other address space reads
/// the table any more, the caller sees all that they did to it, until the caller lets another join.
#[inline]
pub(crate) fn is_last(sharers: &AtomicU64) -> bool {
    sharers.load(Ordering::Acquire) == 0
}

/// Gives up the caller's share. Returns whether others still have theirs: then the caller must not look at
/// the table any more. Otherwise the table is the caller's alone, as after [`is_last`].
#[inline]
pub(crate) fn remove(sharers: &AtomicU64) -> bool {
    let one_less = |sharers: u64| sharers.checked_sub(1);
    sharers.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less).is_ok()
}
