//! Folios of 2 MiB most of which is zero: they are split, and the zeroes are given up.
//!
//! # Protocol
//!
//! *Looking* takes as long as reading 2 MiB, so no task is kept out meanwhile. Under the address space's lock
//! for *writing* the large leaf loses its dirty bit, with a flush. The pages are read while no lock is held.
//! Under the lock for *writing* again, if no other task has had it in between, the leaf becomes 512 small
//! ones, each of which has what hardware recorded since; those of pages that were zero lose the right to
//! store, with a flush; and now a leaf that is clean maps what was read, and of one that is not the page is
//! read again. Then the zero frame comes in the place of pages that are zero, as after a load of untouched
//! memory.
//!
//! Memory that several address spaces map is left alone, and so is what is locked or held, or has a handler
//! of faults.
//!
//! (Linux, since 6.12: `split_underused_thp`, with `max_ptes_none` as the limit.)

use super::next_space::next_space;
use super::splitter::Splitter;
use crate::addr::{Frame, Order, PageSize, VirtAddr, VirtRange};
use crate::arch::EntryFlags;
use crate::limits::{BLOCK_FRAMES, BLOCK_SIZE, DEFERRED_SPLITS, FRAME_SIZE, TABLE_ENTRIES};
use crate::memmap::FrameMask;
use crate::page_alloc::{Gfp, Urgency};
use crate::pgtable::PageTables;
use crate::platform::Platform;
use crate::stats::Stat;
use crate::tlb::{FlushBatch, MmuGather};
use crate::vm::collapse::cursor::Cursor;
use crate::vm::fault::flags::leaf_flags;
use crate::vm::handle::handle;
use crate::vm::mapping::vma::{Vma, VmaFlags};
use crate::vm::space::body::MmBody;
use crate::vm::space::rss::Counted;
use crate::vm::space::shared::MmShared;
use crate::vm::space::state::Space;

/// What one call did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Underused {
    /// Folios of 2 MiB that it looked at.
    pub folios: u64,
    /// Those that were split.
    pub split: u64,
    /// Frames that became free.
    pub freed: u64,
    /// Folios that were underused and could not be split: there was no memory for page tables, or mappings
    /// changed meanwhile.
    pub missed: u64,
    /// Whether it came to the end of all address spaces; the next call starts anew.
    pub full_scan: bool,
}

/// What comes next in an address space.
enum Next {
    End,
    Skip(VirtAddr),
    /// A folio, by one leaf.
    Folio(VirtRange, Frame),
}

handle! {
    /// Splits folios most of which is zero.
    UnderusedFolios of MmShared
}

impl<P: Platform> UnderusedFolios<'_, '_, P> {
    /// Says from how many pages of zeroes on a folio is split when memory is short: with more than this.
    pub(crate) fn set_underused_limit(self, max_ptes_none: usize) {
        self.when_short().0.lock(self.platform()).max_ptes_none = max_ptes_none;
    }

    /// Splits underused folios until some frame is free, or none was found anywhere. How many became free.
    /// The caller holds no lock.
    pub(in crate::vm) fn reclaim_underused(self) -> u64 {
        let mut splitter = *self.when_short().0.lock(self.platform());
        if splitter.max_ptes_none >= TABLE_ENTRIES - 1 {
            return 0;
        }
        let (mut freed, mut ends) = (0, 0);
        // From where it left off to the end, and all over once.
        while freed == 0 && ends < 2 && !self.platform().is_dying() {
            let done = self.split_underused(&mut splitter, DEFERRED_SPLITS as u64);
            freed = done.freed;
            ends += usize::from(done.full_scan);
        }
        self.when_short().0.lock(self.platform()).cursor = splitter.cursor;
        freed
    }

    /// Looks at up to `folios` folios of 2 MiB from where the last call left off, splits those that are
    /// underused, and frees what of them is zero. The caller holds no lock.
    pub(crate) fn split_underused(self, splitter: &mut Splitter, folios: u64) -> Underused {
        let mut done = Underused::default();
        while done.folios < folios && !self.platform().is_dying() {
            let Some(body) = next_space(&mut splitter.cursor, self.0) else {
                splitter.cursor = Cursor::default();
                done.full_scan = true;
                break;
            };
            match self.next_large(&body, splitter.cursor.at) {
                Next::End => splitter.cursor.leave(),
                Next::Skip(to) => splitter.cursor.at = to,
                Next::Folio(extent, frame) => {
                    done.folios += 1;
                    splitter.cursor.at = extent.end;
                    if self.is_underused(frame, splitter.max_ptes_none) {
                        match self.split_if_underused(&body, extent, splitter.max_ptes_none) {
                            Some(freed) => (done.split, done.freed) = (done.split + 1, done.freed + freed),
                            None => done.missed += 1,
                        }
                    }
                }
            }
            drop(body);
            self.platform().reschedule_point();
        }
        self.pages().count(Stat::ThpUnderusedSplitPage, done.split);
        done
    }

    /// The next folio that is one address space's alone, from `at` on.
    fn next_large(self, body: &MmBody, at: VirtAddr) -> Next {
        let space = body.space.read(self.platform());
        let user = space.layout.user;
        if at >= user.end {
            return Next::End;
        }
        let Some(vma) = space.tree.first_in(VirtRange::new(at, user.end)) else { return Next::End };
        let Some(start) = at.max(vma.range.start).align_up(BLOCK_SIZE).filter(|&at| at < vma.range.end)
        else {
            return Next::Skip(vma.range.end);
        };
        let extent = VirtRange::from_len(start, BLOCK_SIZE);
        if suits(&space, extent).is_none() {
            return Next::Skip(vma.range.end);
        }
        let tables = PageTables::new(self.pages(), &body.context);
        match self.own_folio(&tables, start) {
            Some(frame) => Next::Folio(extent, frame),
            None => Next::Skip(tables.end_of_nothing(start).unwrap_or(extent.end)),
        }
    }

    /// The folio of order 9 that a leaf at an address maps, and no other leaf, if it is not held.
    fn own_folio(self, tables: &PageTables<'_, '_, P>, start: VirtAddr) -> Option<Frame> {
        let found = tables.lookup(start);
        let leaf = found.entry;
        let fits = found.leaf_size() == Some(PageSize::Size2M)
            && leaf.has(EntryFlags::ANON)
            && !leaf.has(EntryFlags::SPECIAL)
            && !leaf.has(EntryFlags::UFFD_WP)
            && self.pages().counts().is_block_mapped_once(leaf.frame())
            && self.pages().frames().is_block_folio(leaf.frame());
        fits.then(|| leaf.frame())
    }

    /// Whether more than so many pages of a folio are zero now, as far as can be seen while other tasks store.
    fn is_underused(self, frame: Frame, max_ptes_none: usize) -> bool {
        let (mut zero, mut other) = (0, 0);
        for at in 0..BLOCK_FRAMES as u64 {
            *if self.pages().frames().is_zero(frame.add(at)) { &mut zero } else { &mut other } += 1;
            if other >= TABLE_ENTRIES.saturating_sub(max_ptes_none) || zero > max_ptes_none {
                break;
            }
        }
        zero > max_ptes_none
    }

    /// Splits the folio at an address, if it is underused; how many frames became free.
    fn split_if_underused(self, body: &MmBody, extent: VirtRange, max_ptes_none: usize) -> Option<u64> {
        let tables = PageTables::new(self.pages(), &body.context);
        let space = body.space.write(self.platform());
        suits(&space, extent)?;
        let frame = self.own_folio(&tables, extent.start)?;
        let mut owed = FlushBatch::new();
        let cleared = tables.clear_dirty(extent, &mut owed);
        owed.flush(self.pages(), &body.context);
        cleared.ok()?;
        let number = space.writes();
        drop(space);
        let zeroes = self.zero_pages(frame);
        self.platform().reschedule_point();
        if zeroes.count() <= max_ptes_none {
            return None;
        }
        let space = body.space.write(self.platform());
        let vma = suits(&space, extent).filter(|_| space.writes() == number.wrapping_add(1))?;
        if self.own_folio(&tables, extent.start) != Some(frame) {
            return None;
        }
        // The table takes a frame, and more become free by it.
        let gfp = Gfp { urgency: Urgency::Reserve, ..Gfp::KERNEL };
        tables.split_at_by(extent.start.add(FRAME_SIZE), gfp).ok()?;
        let zero = (self.zero_frame(), leaf_flags(&vma.attributes, false));
        let mut gather = MmuGather::new(self.pages(), &body.context);
        // SAFETY: invariant 1: the zero frame is held as long as the machine runs.
        let dropped = unsafe { tables.drop_zeroes(extent.start, zeroes, zero, &mut gather) };
        body.add_rss(self.pages(), gather.finish(), Counted::File);
        if dropped == BLOCK_FRAMES as u64 {
            // Nothing maps it any more: it is free, and may have another owner.
            return Some(dropped);
        }
        // The leaves that are left keep what they map in use as long as the lock is held, but not its start,
        // which may be among what went: if it was split since, the part has another owner. Where memory is so
        // short that even this fails, it waits to be split. SAFETY: invariant 1: leaves alone owned the
        // folio, so nothing names a frame of it that none maps.
        let freed = unsafe { self.pages().split_mapped(frame, Order::FRAME) }.unwrap_or(0);
        drop(space);
        Some(freed)
    }

    /// The pages of a folio that are zero. What it says of memory that has another owner by now is not relied
    /// upon.
    fn zero_pages(self, frame: Frame) -> FrameMask {
        let zero = |at: &usize| self.pages().frames().is_zero(frame.add(*at as u64));
        (0..BLOCK_FRAMES).filter(zero).fold(FrameMask::EMPTY, |all, at| all.union(FrameMask::run(at, 1)))
    }
}

/// The mapping around an aligned range of 2 MiB, if its folio may be taken apart.
fn suits(space: &Space, extent: VirtRange) -> Option<&Vma> {
    let vma = space.tree.find(extent.start)?;
    let attributes = &vma.attributes;
    let fits = attributes.is_anonymous()
        && attributes.is_private()
        && vma.range.covers(extent)
        && !attributes.flags.contains(VmaFlags::LOCKED)
        && !attributes.handler.is_some();
    fits.then_some(vma)
}
