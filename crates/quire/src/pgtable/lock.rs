//! A page-table page with its lock held, and the changes of its entries.

use core::sync::atomic::Ordering;

use super::PageTables;
use crate::arch::{Entry, EntryFlags, Level};
use crate::memmap::{Descriptor, DescriptorFlags};
use crate::platform::TablePlatform;
use crate::rank::Rank;
use crate::tlb::words::Table;

/// A locked table: until it is dropped only its holder changes entries, apart from hardware's own bits.
pub(super) struct LockedTable<'a, P: TablePlatform> {
    table: Table<'a>,
    descriptor: &'a Descriptor,
    platform: &'a P,
    rank: Rank,
}

impl<'a, 'p, P: TablePlatform> PageTables<'a, 'p, P> {
    /// Takes a table's lock. The caller's hold of the address-space lock keeps the table.
    #[inline]
    pub(super) fn lock(&self, table: Table<'p>) -> LockedTable<'_, P> {
        self.lock_as(table, Rank::PageTable)
    }

    #[inline]
    pub(super) fn lock_second(&self, table: Table<'p>) -> LockedTable<'_, P> {
        self.lock_as(table, Rank::PageTableSecond)
    }

    #[inline(always)]
    fn lock_as(&self, table: Table<'p>, rank: Rank) -> LockedTable<'_, P> {
        let descriptor = self.allocator.memmap().descriptor(table.frame());
        let platform = self.platform();
        descriptor.lock_table(platform, rank);
        LockedTable { table, descriptor, platform, rank }
    }
}

impl<'a, P: TablePlatform> LockedTable<'a, P> {
    #[inline]
    pub(super) fn table(&self) -> Table<'a> {
        self.table
    }

    #[inline]
    pub(super) fn load(&self, index: usize) -> Entry {
        self.table.load(index)
    }

    #[inline]
    pub(super) fn all_empty(&self, index: usize, count: usize) -> bool {
        (index..index + count).all(|at| self.table.load_private(at).is_empty())
    }

    /// Stores an entry where an empty one or the caller's busy mark is.
    #[inline]
    pub(super) fn fill(&self, index: usize, entry: Entry) {
        let before = self.load(index);
        debug_assert!(before.is_empty() || before.is_busy());
        self.note_kind(entry);
        self.table.store(index, entry);
        self.grow(usize::from(before.is_empty()) as i32);
    }

    /// Stores a run of 4 KiB leaves in empty entries; `first` is the first, the others map the frames behind.
    #[inline]
    pub(super) fn fill_run(&self, index: usize, first: Entry, count: usize) {
        self.note_kind(first);
        for step in 0..count {
            self.table.store(index + step, first.in_run(step as u64));
        }
        let (was_empty, grain) = (self.population() == 0, self.descriptor.grain());
        let of_run = u64::from((index | count).trailing_zeros());
        self.grow(count as i32);
        self.descriptor.set_grain(if was_empty { of_run } else { of_run.min(grain) });
    }

    /// Stores a 4 KiB leaf in an empty entry.
    #[inline]
    pub(super) fn fill_one(&self, index: usize, leaf: Entry) {
        self.note_kind(leaf);
        self.table.store(index, leaf);
        self.grow(1);
    }

    /// Notes a leaf that is not counted anonymous memory.
    #[inline]
    pub(super) fn note_kind(&self, leaf: Entry) {
        let counted = leaf.has(EntryFlags::ANON) && !leaf.has(EntryFlags::SPECIAL);
        if !counted && self.table.level() == Level::PTE && !self.descriptor.has(DescriptorFlags::MIXED) {
            self.descriptor.add_flags(DescriptorFlags::MIXED);
        }
    }

    /// Notes the kinds of leaves of `other`, some of which are about to come here.
    #[inline]
    pub(super) fn inherit_kinds(&self, other: &Self) {
        if other.descriptor.has(DescriptorFlags::MIXED) {
            self.descriptor.add_flags(DescriptorFlags::MIXED);
        }
    }

    /// Takes over the grain of `other`, all of whose leaves, and no others, have come here.
    #[inline]
    pub(super) fn inherit_grain(&self, other: &Self) {
        self.descriptor.set_grain(other.descriptor.grain());
    }

    /// Notes that all leaves are one run, and what is recorded in them.
    #[inline]
    pub(super) fn note_compared(&self, history: EntryFlags) {
        self.descriptor.note_compared(history.bits());
    }

    /// Takes a leaf out and returns it with all that hardware set. The caller calls [`Self::grow`]
    /// afterwards.
    #[inline]
    pub(super) fn take(&self, index: usize, leaf: Entry) -> Entry {
        if leaf.is_settled() {
            self.table.store(index, Entry::EMPTY);
            leaf
        } else {
            self.table.swap(index, Entry::EMPTY)
        }
    }

    /// Marks an entry busy, and returns it with all that hardware set.
    #[inline]
    pub(super) fn make_busy(&self, index: usize) -> Entry {
        self.descriptor.set_grain(0);
        self.table.swap(index, Entry::BUSY)
    }

    /// Stores an entry where the caller's busy mark is.
    #[inline]
    pub(super) fn fill_busy(&self, index: usize, entry: Entry) {
        debug_assert!(self.load(index).is_busy());
        self.note_kind(entry);
        self.descriptor.set_grain(0);
        self.table.store(index, entry);
    }

    /// Replaces any entry by another; returns the old one.
    #[inline]
    pub(super) fn exchange(&self, index: usize, entry: Entry) -> Entry {
        let before = self.table.swap(index, entry);
        self.grow(i32::from(!entry.is_empty()) - i32::from(!before.is_empty()));
        before
    }

    /// Replaces an entry by a marker that its memory is lost.
    pub(super) fn mark_lost(&self, index: usize) -> Entry {
        self.note_kind(Entry::POISON);
        self.exchange(index, Entry::POISON)
    }

    /// Changes a present leaf by `change`, again should hardware set more bits meanwhile; returns the leaf
    /// before.
    #[inline]
    pub(super) fn update(&self, index: usize, seen: Entry, change: impl Fn(Entry) -> Entry) -> Entry {
        self.descriptor.set_grain(self.descriptor.grain());
        let mut before = seen;
        loop {
            let after = change(before);
            if after == before {
                return before;
            }
            if before.is_settled() {
                self.table.store(index, after);
                return before;
            }
            match self.table.compare_exchange(index, before, after) {
                Ok(()) => return before,
                Err(now) => before = now,
            }
        }
    }

    #[inline]
    fn population(&self) -> u16 {
        self.descriptor.population.load(Ordering::Relaxed)
    }

    /// Corrects the number of non-empty entries, and forgets the grain, since some entries changed frames.
    #[inline]
    pub(super) fn grow(&self, by: i32) {
        self.descriptor.set_grain(0);
        let population = i32::from(self.population()) + by;
        debug_assert!((0..=crate::limits::TABLE_ENTRIES as i32).contains(&population));
        self.descriptor.population.store(population as u16, Ordering::Relaxed);
    }
}

impl<P: TablePlatform> Drop for LockedTable<'_, P> {
    #[inline]
    fn drop(&mut self) {
        self.descriptor.unlock_table(self.platform, self.rank);
    }
}

/// Whether two readings of a leaf mean the same translation: they differ only in what hardware sets.
#[inline]
pub(super) fn same_leaf(one: Entry, other: Entry) -> bool {
    one.without(EntryFlags::HISTORY) == other.without(EntryFlags::HISTORY)
}
