//! How many address spaces reach a page table beside one: the steps on that number which several of them may
//! take at once. The protocol around them stands in `pgtable/share.rs`.
#![forbid(unsafe_code)]

use crate::atomic::{AtomicU64, Ordering};

/// Another address space is about to reach a table that the caller had to itself.
#[inline]
pub(crate) fn begin(sharers: &AtomicU64) {
    sharers.store(1, Ordering::Relaxed);
}

/// Another address space is about to reach a table in which the caller has a share.
#[inline]
pub(crate) fn join(sharers: &AtomicU64) {
    sharers.fetch_add(1, Ordering::Relaxed);
}

/// Whether the caller's address space, which has a share, is the only one left. Then no other address space
/// reads the table any more, all that the others did to it is seen, and it stays so until the caller lets
/// another join.
#[inline]
pub(crate) fn is_last(sharers: &AtomicU64) -> bool {
    sharers.load(Ordering::Acquire) == 0
}

/// Gives up the caller's share; whether others still have theirs: then the table is not the caller's to look
/// at any more. If not, it is the caller's alone, as after [`is_last`].
#[inline]
pub(crate) fn leave(sharers: &AtomicU64) -> bool {
    let one_less = |sharers: u64| sharers.checked_sub(1);
    sharers.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less).is_ok()
}
