use std::vec::Vec;

use super::*;
use crate::addr::PageSize;
use crate::arch::Protection;

fn empty() -> [AtomicU64; TABLE_ENTRIES] {
    [const { AtomicU64::new(0) }; TABLE_ENTRIES]
}

fn table(words: &[AtomicU64; TABLE_ENTRIES]) -> Table<'_> {
    Table { words, frame: Frame(0), level: Level::PTE }
}

fn settled(at: usize) -> Entry {
    let flags = EntryFlags::leaf(Protection::READ | Protection::WRITE);
    Entry::leaf(Frame(at as u64), PageSize::Size4K, flags | EntryFlags::ACCESSED | EntryFlags::DIRTY)
}

/// Twenty settled leaves, but hardware may still set a bit in those at 12 and 19.
fn store_leaves(from: Table<'_>) {
    (0..20).for_each(|at| from.store(at, settled(at)));
    from.store(12, settled(12).without(EntryFlags::DIRTY));
    from.store(19, settled(19).without(EntryFlags::ACCESSED));
}

/// Hardware may set a bit of an unsettled leaf between a load and a plain store, which would lose it.
#[test]
fn only_groups_of_settled_leaves_are_weakened_by_plain_stores() {
    let (shared, copy) = (empty(), empty());
    let (from, to) = (table(&shared), table(&copy));
    store_leaves(from);
    let before: Vec<Entry> = (0..20).map(|at| from.load(at)).collect();
    let mut left = Vec::new();
    from.copy_weakened(to, 0..20, |entries| left.push(entries));
    assert_eq!(left, [8..16, 16..20]);
    for (at, &before) in before.iter().enumerate() {
        let weak = before.without(EntryFlags::WRITE);
        let expected = if at < 8 { (weak, weak) } else { (before, Entry::EMPTY) };
        assert_eq!((from.load(at), to.load(at)), expected, "entry {at}");
    }
}

#[test]
fn only_groups_of_settled_leaves_are_moved_by_plain_stores() {
    let (old, new) = (empty(), empty());
    let (from, to) = (table(&old), table(&new));
    store_leaves(from);
    let before: Vec<Entry> = (0..20).map(|at| from.load(at)).collect();
    let mut left = Vec::new();
    from.move_settled(1..20, to, 100, |at, target| left.push((at, target)));
    assert_eq!(left, (9..20).map(|at| (at, 99 + at)).collect::<Vec<_>>());
    for (at, &before) in before.iter().enumerate() {
        let moved = (1..9).contains(&at);
        let expected = if moved { (Entry::EMPTY, before) } else { (before, Entry::EMPTY) };
        assert_eq!((from.load(at), to.load(99 + at)), expected, "entry {at}");
    }
}
