use super::*;
use crate::addr::{Frame, PageSize, VirtAddr, VirtRange};
use crate::arch::{Entry, EntryFlags, Level, Protection};

fn leaf() -> Entry {
    Entry::leaf(Frame(7), PageSize::Size4K, EntryFlags::leaf(Protection::READ))
}

/// Invariant 2.
#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "never flushed")]
fn what_was_unmapped_cannot_be_dropped() {
    drop(Unmapped::leaves(leaf(), PageSize::Size4K, 1));
}

/// Invariant 2.
#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "never flushed")]
fn a_detached_table_cannot_be_dropped() {
    drop(Unmapped::table(Entry::table(Frame(9)), Level::PMD));
}

/// Invariant 2.
#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "was never made")]
fn a_flush_that_is_owed_cannot_be_dropped() {
    let mut owed = FlushBatch::new();
    owed.add(VirtRange::from_len(VirtAddr(4096), 4096), PageSize::Size4K);
}

#[test]
fn an_empty_batch_owes_nothing() {
    let mut owed = FlushBatch::new();
    assert!(owed.is_empty());
    owed.add(VirtRange::from_len(VirtAddr(4096), 0), PageSize::Size4K);
    assert!(owed.is_empty());
}

#[test]
fn resident_memory_counts_pages_by_kind() {
    let mut change = RssChange::mapped(leaf(), PageSize::Size4K, 3);
    change += RssChange::mapped(leaf().with(EntryFlags::ANON), PageSize::Size2M, 2);
    change += RssChange::mapped(leaf().with(EntryFlags::SPECIAL), PageSize::Size4K, 5);
    assert_eq!(change, RssChange { anon: 1024, file: 3 });
}
