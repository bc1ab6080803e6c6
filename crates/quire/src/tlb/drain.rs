//! Takes apart what is flushed: drops the counts first, then frees the tables.
//!
//! A detached subtree is read by plain loads. Its parent's entry is gone, every CPU was flushed, and the task
//! that detached it held the address-space lock for writing, so no walker was inside (invariants 3 and 4).

use core::sync::atomic::Ordering;

use super::marks::{carry, carry_each, carry_page, recorded};
use super::release::Release;
use super::scatter::{SHORT, Scattered, is_scattered};
use super::unmapped::Leaves;
use super::words::Table;
use super::{MmContext, RssChange};
use crate::addr::{Frame, FrameRange, Order, PageSize, VirtAddr};
use crate::arch::{Entry, EntryFlags, Level, expect_changes};
use crate::limits::{BLOCK_FRAMES, TABLE_ENTRIES};
use crate::memmap::Descriptor;
#[cfg(feature = "published")]
use crate::memmap::FrameMask;
use crate::page_alloc::PageAllocator;
use crate::platform::TablePlatform;
use crate::stats::Stat;

/// Up to so many tables are freed through the per-CPU list one by one; more go to the store together.
const FEW: usize = 8;
/// Tables that are freed together, at most.
const BATCH: usize = 32;

/// Drops counts and frees tables, in batches.
pub(super) struct Drain<'a, 'p, P: TablePlatform> {
    allocator: &'a PageAllocator<'p, P>,
    context: &'a MmContext,
    release: Release<'a, 'p, P>,
    rss: RssChange,
    /// Tables that were read and can be freed; created for the first.
    read: Option<[Frame; BATCH]>,
    read_count: usize,
    /// Created for the first scattered table.
    scattered: Option<Scattered<'p>>,
    /// The last folio of a file, of whole blocks, that has every mark from here ([`carry_each`]).
    marked: FrameRange,
}

impl<'a, 'p, P: TablePlatform> Drain<'a, 'p, P> {
    #[inline]
    pub(super) fn new(allocator: &'a PageAllocator<'p, P>, context: &'a MmContext) -> Self {
        let (release, rss) = (Release::new(allocator), RssChange::default());
        Self {
            allocator,
            context,
            release,
            rss,
            read: None,
            read_count: 0,
            scattered: None,
            marked: FrameRange::new(Frame(0), 0),
        }
    }

    /// Drops the counts of leaves onto consecutive frames.
    #[inline]
    pub(super) fn leaves(&mut self, leaves: Leaves) {
        self.release.leaves(&leaves);
        self.count_resident(&leaves);
    }

    /// Drops the counts of one span. Returns the span that follows, if it continues the folio; then nothing is
    /// freed, the block's lock stays held, and `unmapped` collects what will be freed.
    #[cfg(feature = "published")]
    #[inline]
    pub(super) fn span(
        &mut self,
        leaves: &Leaves,
        follower: Option<Leaves>,
        unmapped: &mut FrameMask,
    ) -> Option<Leaves> {
        let end = leaves.frames.end();
        let follower = follower.filter(|follower| {
            leaves.size == PageSize::Size4K
                && follower.frames.start == end
                && self.allocator.frames().folio_goes_on(Frame(end.0 - 1))
        });
        self.release.part_of_folio(leaves, follower.is_none(), unmapped);
        self.count_resident(leaves);
        follower
    }

    #[inline]
    fn count_resident(&mut self, leaves: &Leaves) {
        let pages = leaves.frames.count as i64;
        if leaves.anon {
            self.rss.anon -= pages;
        } else {
            self.rss.file -= pages;
        }
    }

    /// Reads a detached table, which maps nothing before `first`, and its subtree, drops the counts of its
    /// leaves, and frees the tables. Recurses once per level.
    pub(super) fn subtree(&mut self, frame: Frame, level: Level, first: VirtAddr) {
        let table = Table::at(self.allocator.platform(), frame, level);
        let descriptor = self.allocator.frames().descriptor(frame);
        if level == Level::PTE && self.give_up_share(table, descriptor) {
            return;
        }
        let population = usize::from(descriptor.population.load(Ordering::Relaxed));
        let mut left = population;
        let entries = self.context.entries_of(frame);
        let grain = if level == Level::PTE { 1 << descriptor.grain() } else { 1 };
        let begin = level.index(first) & !(grain - 1);
        let (mut index, mut looked_at) = (begin, 0);
        while left > 0 && looked_at < entries {
            if index >= entries {
                // Tables before the first leaf may be empty.
                index = 0;
            }
            let entry = table.load_private(index);
            let mut run = grain;
            if entry.is_leaf(level) {
                run = if level == Level::PTE { table.run_by_grain(index, entry, grain) } else { 1 };
                if run < SHORT && left == population && is_scattered(table, population) {
                    return self.scatter(table);
                }
                if level == Level::PTE {
                    self.expect_run(table, index + run, run);
                }
                self.run(table, index, run, entry);
                left -= run;
            } else if entry.is_table(level) {
                if level == Level::PMD {
                    self.look_ahead(table, index);
                }
                self.subtree(entry.frame(), level.below(), if index == begin { first } else { VirtAddr(0) });
                left -= 1;
            } else if entry.is_poison() {
                left -= 1;
            } else {
                debug_assert!(entry.is_empty(), "a detached table holds {entry:?}");
                if grain == 1 {
                    run = table.empty_from(index, entries);
                }
            }
            index += run;
            looked_at += run;
        }
        debug_assert_eq!(left, 0, "a detached table holds fewer entries than it counts");
        self.give_up(frame);
    }

    /// Prefetches children behind `index`: first a table and its descriptor, later the counts of its leaves.
    #[inline]
    fn look_ahead(&self, table: Table<'_>, index: usize) {
        let platform = self.allocator.platform();
        let child = |at: usize| {
            let entry = (at < TABLE_ENTRIES).then(|| table.load_private(at))?;
            entry.is_table(table.level()).then(|| table.child(platform, entry))
        };
        if let Some(next) = child(index + 2) {
            let grain = 1 << self.allocator.frames().descriptor(next.frame()).grain();
            self.expect_run(next, 0, if grain == TABLE_ENTRIES { 0 } else { TABLE_ENTRIES });
        }
        if let Some(after) = child(index + 4) {
            let descriptor = core::ptr::from_ref(self.allocator.frames().descriptor(after.frame()));
            expect_changes(descriptor.cast(), size_of::<Descriptor>());
            expect_changes(platform.direct_map(after.frame().addr()), 1);
        }
    }

    /// Prefetches the counts of a run of about `count` leaves at `index`; with 0 the block's record only.
    #[inline]
    fn expect_run(&self, table: Table<'_>, index: usize, count: usize) {
        if index < TABLE_ENTRIES {
            let first = table.load_private(index);
            if first.is_leaf(Level::PTE) {
                let frame = first.frame();
                let count = count.min(BLOCK_FRAMES - frame.index_in_block());
                self.allocator.frames().expect_counts(FrameRange::new(frame, count as u64));
            }
        }
    }

    /// Records the leaves of a lowest-level table, to be counted down with those of other tables by block.
    fn scatter(&mut self, table: Table<'_>) {
        let scattered = self.scattered.get_or_insert_with(Scattered::new);
        scattered.add_table(self.allocator.platform(), table.frame());
        for index in 0..TABLE_ENTRIES {
            let leaf = table.load_private(index);
            if !leaf.is_present() || leaf.has(EntryFlags::SPECIAL) {
                continue;
            }
            if leaf.has(EntryFlags::ANON) {
                self.rss.anon -= 1;
            } else {
                self.rss.file -= 1;
                carry_page(self.allocator, leaf);
            }
            scattered.push(leaf.frame());
        }
        if scattered.is_full() {
            self.release_scattered();
        }
    }

    /// Counts down the recorded leaves, and frees the tables that held them.
    #[cold]
    fn release_scattered(&mut self) {
        let Some(scattered) = &mut self.scattered else { return };
        scattered.release(&mut self.release);
        while let Some(table) = self.scattered.as_mut().and_then(Scattered::pop_table) {
            self.give_up(table);
        }
    }

    /// Adds a table that was read to the next batch.
    fn give_up(&mut self, table: Frame) {
        let descriptor = self.allocator.frames().descriptor(table);
        descriptor.clear_flags();
        descriptor.population.store(0, Ordering::Relaxed);
        if self.read_count == BATCH {
            self.free_tables();
        }
        self.read.get_or_insert([Frame(0); BATCH])[self.read_count] = table;
        self.read_count += 1;
        self.release.spend(1, 0);
    }

    /// Gives up the share in a table that other address spaces reach as well. Returns whether they do.
    #[inline]
    fn give_up_share(&mut self, table: Table<'_>, descriptor: &Descriptor) -> bool {
        if super::sharers::is_last(descriptor.sharers()) {
            return false;
        }
        let resident = super::resident(table, descriptor);
        let left = super::sharers::remove(descriptor.sharers());
        if left {
            self.rss += RssChange { anon: -resident.anon, file: -resident.file };
            self.context.remove_tables(1);
        }
        left
    }

    #[inline]
    fn run(&mut self, table: Table<'_>, index: usize, run: usize, first: Entry) {
        let Some(size) = table.level().leaf_size() else { return };
        if first.has(EntryFlags::SPECIAL) {
            return;
        }
        if size != PageSize::Size4K {
            // Each large leaf knows by itself whether it maps zeroes, and what it recorded.
            for at in index..index + run {
                let leaf = table.load_private(at);
                let leaves = Leaves::one(leaf, size);
                carry(self.allocator, leaves.frames, size, recorded(leaf));
                self.leaves(leaves);
            }
            return;
        }
        if !first.has(EntryFlags::ANON) {
            carry_each(self.allocator, table, index..index + run, &mut self.marked);
        }
        let frames = FrameRange::new(first.frame(), run as u64);
        self.leaves(Leaves { frames, ..Leaves::one(first, size) });
    }

    /// Frees the tables that were read. The counter unlocks first: the store takes locks of that rank.
    fn free_tables(&mut self) {
        self.release.unlock();
        let Some(read) = &self.read else { return };
        let frames = &read[..core::mem::take(&mut self.read_count)];
        // SAFETY: invariants 1 and 4: the tables are detached and flushed, so nothing reaches their frames.
        let mut folios = unsafe { self.allocator.frames().folios_from_raw(Order::FRAME, frames) };
        let freed = if frames.len() <= FEW {
            folios.all(|folio| self.allocator.free(folio).is_ok())
        } else {
            self.allocator.free_bulk(folios).is_ok()
        };
        debug_assert!(freed, "a page-table page could not be freed");
        self.allocator.change(Stat::NrPageTablePages, -(frames.len() as i64));
        self.context.remove_tables(frames.len() as u64);
    }

    /// Frees the remaining tables and returns the change of resident memory.
    #[inline]
    pub(super) fn finish(&mut self) -> RssChange {
        if self.scattered.is_some() {
            self.release_scattered();
        }
        if self.read_count > 0 {
            self.free_tables();
        }
        self.rss
    }
}
