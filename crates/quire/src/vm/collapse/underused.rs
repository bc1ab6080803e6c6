//! Splits folios of 2 MiB that are mostly zero, and frees the zeroes.
//!
//! # Protocol
//!
//! Looking for zeroes reads 2 MiB, so it holds no lock. Before it, under the address space's lock for
//! *writing*, the large leaf loses its dirty bit, with a flush. After it the lock is taken for *writing*
//! again. If no other task held it for writing in between, the leaf is split into 512 small ones, each with
//! the accessed and dirty bits that hardware has set since. The leaves of pages that were zero lose the right
//! to store, with a flush. A leaf that is still clean maps what was read; the page of a dirty one is read
//! again. Then the zero frame replaces the pages that are zero, as after a load of untouched memory.
//!
//! Memory that is shared, locked or held, or has a handler of faults, stays as it is.
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

/// The outcome of one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Underused {
    /// Folios of 2 MiB that it looked at.
    pub folios: u64,
    /// Those that it split.
    pub split: u64,
    /// Frames that it freed.
    pub freed: u64,
    /// Underused folios not split: there was no memory for page tables, or mappings changed meanwhile.
    pub missed: u64,
    /// Whether it came to the end of all address spaces; the next call starts anew.
    pub full_scan: bool,
}

enum Next {
    End,
    Skip(VirtAddr),
    /// A folio that one leaf maps.
    Folio(VirtRange, Frame),
}

handle! {
    /// Splits folios that are mostly zero.
    UnderusedFolios of MmShared
}

impl<P: Platform> UnderusedFolios<'_, '_, P> {
    /// When memory is short, folios with more than this many pages of zeroes are split.
    pub(crate) fn set_underused_limit(self, max_ptes_none: usize) {
        self.hooks()
            .reclaim_underused
            .install(self.platform(), |memory| UnderusedFolios::of(memory).reclaim_underused());
        self.when_short().0.lock(self.platform()).max_ptes_none = max_ptes_none;
    }

    /// Splits underused folios until one frees frames; returns how many. The caller holds no lock.
    pub(in crate::vm) fn reclaim_underused(self) -> u64 {
        let mut splitter = *self.when_short().0.lock(self.platform());
        if splitter.max_ptes_none >= TABLE_ENTRIES - 1 {
            return 0;
        }
        let (mut freed, mut ends) = (0, 0);
        // From where the last call stopped to the end, and once through all address spaces.
        while freed == 0 && ends < 2 && !self.platform().is_dying() {
            let done = self.split_underused(&mut splitter, DEFERRED_SPLITS as u64);
            freed = done.freed;
            ends += usize::from(done.full_scan);
        }
        self.when_short().0.lock(self.platform()).cursor = splitter.cursor;
        freed
    }

    /// Looks at up to `folios` folios after the last call's, and splits underused ones. The caller holds no
    /// lock.
    pub(crate) fn split_underused(self, splitter: &mut Splitter, folios: u64) -> Underused {
        let mut done = Underused::default();
        while done.folios < folios && !self.platform().is_dying() {
            let Some(body) = next_space(&mut splitter.cursor, self.0) else {
                splitter.cursor = Cursor::default();
                done.full_scan = true;
                break;
            };
            match self.next_large(&body, splitter.cursor.at) {
                Next::End => splitter.cursor.next_space(),
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

    /// The next folio from `at` on that this address space alone maps.
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
        let tables = body.tables(self.pages());
        match self.own_folio(&tables, start) {
            Some(frame) => Next::Folio(extent, frame),
            None => Next::Skip(tables.end_of_nothing(start).unwrap_or(extent.end)),
        }
    }

    /// The folio of order 9 at an address, if one large leaf maps it, no other leaf does, and it is not held.
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

    /// Whether more than `max_ptes_none` pages are zero. A guess: other tasks may store meanwhile.
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

    /// Splits the folio at an address, if it is underused; returns how many frames became free.
    fn split_if_underused(self, body: &MmBody, extent: VirtRange, max_ptes_none: usize) -> Option<u64> {
        let tables = body.tables(self.pages());
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
        // The new table takes one frame of the reserve, and the split frees more.
        let gfp = Gfp { urgency: Urgency::Reserve, ..Gfp::KERNEL };
        tables.split_at_by(extent.start.add(FRAME_SIZE), gfp).ok()?;
        let zero = (self.zero_frame(), leaf_flags(&vma.attributes, false));
        let mut gather = MmuGather::new(self.pages(), &body.context);
        // SAFETY: invariant 1: the zero frame is held as long as the machine runs.
        let dropped = unsafe { tables.drop_zeroes(extent.start, zeroes, zero, &mut gather) };
        body.add_rss(self.pages(), gather.finish(), Counted::File);
        if dropped == BLOCK_FRAMES as u64 {
            // No leaf maps the folio any more: it is free, and may have another owner.
            return Some(dropped);
        }
        // While the lock is held, the other leaves keep their frames in use, but not the first frame, which
        // may have been zero: if the folio was split since, that part may have another owner. If there is no
        // memory for this split, the folio waits for a later one.
        // SAFETY: invariant 1: only leaves owned the folio, so no code names a frame of it that no leaf maps.
        let freed = unsafe { self.pages().split_mapped(frame, Order::FRAME) }.unwrap_or(0);
        drop(space);
        Some(freed)
    }

    /// The pages that are zero. No lock is held, so the folio may have a new owner: the caller checks that
    /// later.
    fn zero_pages(self, frame: Frame) -> FrameMask {
        let zero = |at: &usize| self.pages().frames().is_zero(frame.add(*at as u64));
        (0..BLOCK_FRAMES).filter(zero).fold(FrameMask::EMPTY, |all, at| all.union(FrameMask::run(at, 1)))
    }
}

/// The mapping around 2 MiB, if their folio may be split.
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
