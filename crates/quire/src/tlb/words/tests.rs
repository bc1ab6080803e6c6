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

/// Hardware may set a bit of an unsettled leaf between a load and a plain store, which would lose it.
#[test]
fn only_groups_of_settled_leaves_are_weakened_by_plain_stores() {
    let (shared, copy) = (empty(), empty());
    let (from, to) = (table(&shared), table(&copy));
    let flags = EntryFlags::leaf(Protection::READ | Protection::WRITE);
    let settled = |at: usize| {
        let flags = flags | EntryFlags::ACCESSED | EntryFlags::DIRTY;
        Entry::leaf(Frame(at as u64), PageSize::Size4K, flags)
    };
    (0..20).for_each(|at| from.store(at, settled(at)));
    from.store(12, settled(12).without(EntryFlags::DIRTY));
    from.store(19, settled(19).without(EntryFlags::ACCESSED));
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
