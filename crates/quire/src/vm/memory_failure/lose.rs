//! A frame went bad: its contents are lost, and nothing else.
//!
//! | the frame is | then |
//! |---|---|
//! | free, wherever it is, or kept for a page that is to move there | it is lost ([`crate::page_alloc::Verdict`]) |
//! | anonymous memory | its folio is split; every leaf of the frame becomes a marker, and a task that touches one gets [`FaultError::Poisoned`](crate::error::FaultError::Poisoned) |
//! | a clean page of a file | it is unmapped and dropped; the next access reads it again |
//! | a page of a file that is newer than the file | tasks that mapped it get markers, as for anonymous memory; others read what the file has |
//! | a page of shared anonymous memory | as anonymous memory, also for mappings made later |
//! | part of a private huge page | every leaf of the page becomes a marker, and the page returns to its pool, which drops it ([`crate::hugetlb::HugeFailure`]) |
//! | part of a huge page of a file | the page stays with its file, and the pool drops it when the file frees it; where parts may be mapped by themselves, all but the bad part can be used |
//! | a page table, a small object, a descriptor | nothing can be done |
//!
//! The order is that of a move ([`crate::vm::migrate::relocate`]): the frame is set aside, so it is not
//! freed; its leaves are unmapped, one address space after the other; when none is left the frame is lost. A
//! task that was copying the page drops its copy, or keeps what it read before hardware complained.
//!
//! (Linux: `memory_failure()`; the marker is its hwpoison entry.)

use crate::addr::{Frame, FrameRange, Order, PageSize, VirtAddr, VirtRange};
use crate::arch::EntryFlags;
use crate::error::{MemoryFailureError, SplitError};
use crate::filemap::{FileClosed, FoundPage};
use crate::hugetlb::HugeSize;
use crate::limits::{BLOCK_SIZE, FRAME_SHIFT, FRAME_SIZE};
use crate::page_alloc::Verdict;
use crate::pgtable::{PageTables, Zap};
use crate::platform::Platform;
use crate::stats::Stat;
use crate::tlb::MmuGather;
use crate::vm::gigantic::cancel::Cancellation;
use crate::vm::gigantic::pool::PoolClears;
use crate::vm::handle::handle;
use crate::vm::mapping::vma::VmaFlags;
use crate::vm::rmap::reverse::{ReverseMap, find_leaf, place_in};
use crate::vm::space::found::FoundBody;
use crate::vm::space::rss::Counted;
use crate::vm::space::shared::MmShared;

/// Attempts on a frame whose owner is changing.
pub(super) const ROUNDS: usize = 16;

/// What a frame was that went bad, and what became of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryFailure {
    /// It was free, or kept for a page of a file that was to move there, and is lost.
    Free,
    /// It belongs to a folio of whole blocks that is allocated and not mapped: it is lost when the folio is
    /// freed.
    Marked,
    /// It was anonymous memory: its mappings have a marker now.
    Anonymous,
    /// It held a page of a file that can be read again.
    Dropped,
    /// It held the only copy of a page of a file: its mappings have a marker now.
    PageLost,
    /// It belongs to a page of a pool. The caller must tell the pool by
    /// [`HugePools::memory_failure`](crate::hugetlb::HugePools::memory_failure).
    Huge,
}

handle! { MemoryLoss of MmShared }

impl<P: Platform> MemoryLoss<'_, '_, P> {
    /// Takes a frame that went bad out of use. The caller holds no lock.
    ///
    /// # Errors
    /// [`MemoryFailureError`]. Where memory was short, the frame stays marked and some address spaces may have lost
    /// it already: the next call goes on.
    pub(crate) fn memory_failure(self, frame: Frame) -> Result<MemoryFailure, MemoryFailureError> {
        // Before the first frame can be marked.
        self.hooks()
            .lose_marked
            .install(self.platform(), |memory, folio| MemoryLoss::of(memory).lose_marked_now(folio));
        Cancellation::of(self.0).cancel_around(frame);
        for _ in 0..ROUNDS {
            let done = match self.pages().condemn(frame) {
                Verdict::Lost => Some(MemoryFailure::Free),
                Verdict::Marked => Some(MemoryFailure::Marked),
                Verdict::Huge => {
                    self.lose_huge(frame)?;
                    Some(MemoryFailure::Huge)
                }
                // Leaves for which memory was short at the first call.
                Verdict::Already if self.lose_rest(frame)? => Some(MemoryFailure::Huge),
                Verdict::Already => return Err(MemoryFailureError::AlreadyPoisoned),
                Verdict::Anonymous => self.lose_anonymous(frame)?.then_some(MemoryFailure::Anonymous),
                Verdict::Held => self.lose_cached(frame)?,
                Verdict::Busy => None,
                Verdict::Unrecoverable => return Err(MemoryFailureError::Unrecoverable),
                Verdict::NotMemory => return Err(MemoryFailureError::NotMemory),
            };
            if let Some(done) = done {
                return Ok(done);
            }
            self.platform().reschedule_point();
            self.platform().relax();
        }
        Err(MemoryFailureError::Busy)
    }

    /// Takes out of use the frames of a folio of whole blocks that were marked before it was mapped. A frame
    /// for which memory is short stays marked until the folio is freed, and so does each where the page
    /// allocator alone was told of bad frames. The caller holds no lock.
    pub(in crate::vm) fn lose_marked(self, folio: FrameRange) {
        if let Some(lose) = self.hooks().lose_marked.get(self.platform()) {
            lose(self.0, folio);
        }
    }

    fn lose_marked_now(self, folio: FrameRange) {
        for piece in folio.by_block() {
            // Take all marks of a block at once: the first lost frame splits the block.
            let number = piece.start.block();
            for (start, count) in self.pages().frames().take_marks(number).runs() {
                for at in start..start + count {
                    let frame = number.first_frame().add(at as u64);
                    if self.memory_failure(frame).is_err() {
                        self.pages().frames().mark_again(frame);
                    }
                }
            }
        }
    }

    /// Replaces an anonymous frame's leaves by markers. Returns whether none is left.
    fn lose_anonymous(self, frame: Frame) -> Result<bool, MemoryFailureError> {
        let pages = self.pages();
        let Some(start) = pages.frames().folio_start(frame) else { return Ok(false) };
        if pages.frames().folio_rest(start) > Order::BLOCK.frames() {
            match ReverseMap::of(self.0).split_folio(start, Order::BLOCK) {
                // It was unmapped, or another task splits or fills it: the caller tries again.
                Err(SplitError::NotAFolio | SplitError::InUse) => return Ok(false),
                Err(SplitError::OutOfMemory) => return Err(MemoryFailureError::OutOfMemory),
                Ok(_) => {}
            }
        }
        let Some(start) = pages.frames().folio_start(frame) else { return Ok(false) };
        if ReverseMap::of(self.0).split_folio(start, Order::FRAME) == Err(SplitError::OutOfMemory) {
            return Err(MemoryFailureError::OutOfMemory);
        }
        match pages.frames().set_aside(frame) {
            Some(Order::FRAME) => {}
            Some(order) => {
                // SAFETY: invariant 1: `set_aside` has just held these frames for this task.
                unsafe { pages.counts().release(FrameRange::folio(frame, order)) };
                return Ok(false);
            }
            None => return Ok(false),
        }
        let marked = self.mark_everywhere(frame);
        if marked.is_ok() && pages.counts().mapcount(frame) == 0 {
            pages.frames().bury(frame);
            return Ok(true);
        }
        // SAFETY: invariant 1: `set_aside` held the frame for this task.
        unsafe { pages.counts().release(FrameRange::folio(frame, Order::FRAME)) };
        marked.map(|()| false)
    }

    fn mark_everywhere(self, frame: Frame) -> Result<(), MemoryFailureError> {
        let Some(origin) = self.pages().frames().origin(frame) else { return Ok(()) };
        let mut after = 0;
        while let Some(body) = FoundBody::next_of_family(self.0, origin.family(), after) {
            after = body.mapper.number();
            let space = body.space.write(self.platform());
            let tables = body.tables(self.pages());
            let Some(addr) = place_in(&space, &tables, frame, origin.addr()) else { continue };
            if tables.lookup(addr).shared {
                let table = VirtRange::from_len(addr.align_down(BLOCK_SIZE), BLOCK_SIZE);
                tables.unshare(table).map_err(|_| MemoryFailureError::OutOfMemory)?;
            }
            let mut gather = MmuGather::new(self.pages(), &body.context);
            tables.poison(addr, PageSize::Size4K, tables.lookup(addr).entry, &mut gather);
            body.add_rss(self.pages(), gather.finish(), Counted::File);
        }
        Ok(())
    }

    /// Handles a huge page in use of which `frame` was marked. A private one is replaced by markers wherever
    /// it is mapped, and returns to its pool. One of a file is unmapped and stays with the file until the
    /// file frees it, since the file has nothing else for that place: a fault on it fails. (So does Linux
    /// since 6.2.)
    fn lose_huge(self, frame: Frame) -> Result<(), MemoryFailureError> {
        PoolClears::of(self.0).complete_around(frame);
        let Some(head) = self.pages().frames().folio_start(frame) else { return Ok(()) };
        if self.pages().frames().is_lent(head) {
            self.take_huge_from(head, |_| true);
            return Ok(());
        }
        self.unmap_huge_everywhere(head, frame, false).map(drop)
    }

    /// Unmaps a frame of a file's huge page that was marked before. Returns whether a leaf mapped it still.
    fn lose_rest(self, frame: Frame) -> Result<bool, MemoryFailureError> {
        let frames = self.pages().frames();
        let of_pool =
            |head: &Frame| [Order::BLOCK, Order::GIGANTIC].iter().any(|&of| frames.is_huge(*head, of));
        let head = frames.folio_start(frame).filter(|head| of_pool(head) && !frames.is_lent(*head));
        head.map_or(Ok(false), |head| self.unmap_huge_everywhere(head, frame, false))
    }

    /// Unmaps the huge page at `head`, or frame `bad` alone where parts of pages may be mapped by themselves.
    /// Returns whether a leaf mapped it. A page does not name its file, so this rare case reads each leaf of
    /// each mapping of huge pages. The caller holds no lock.
    ///
    /// # Errors
    /// [`MemoryFailureError::OutOfMemory`] if a large leaf must be split, and `whole` does not say that it
    /// may be unmapped. It stays: a handler must not hear that the other parts are missing, and answer with
    /// other contents.
    fn unmap_huge_everywhere(self, head: Frame, bad: Frame, whole: bool) -> Result<bool, MemoryFailureError> {
        let (mut after, mut found, mut short) = ((0, 0), false, false);
        while let Some((body, next)) = FoundBody::next_of_all(self.0, after) {
            after = next;
            let space = body.space.write(self.platform());
            let tables = body.tables(self.pages());
            for vma in space.tree.iter().filter(|_| space.huge) {
                // A mapping of pages of another size cannot map this one, but may map its neighbours.
                let size = vma
                    .attributes
                    .huge_size()
                    .filter(|size| self.pages().frames().is_huge(head, size.order()));
                let Some(size) = size else { continue };
                let page = FrameRange::folio(head, size.order());
                let Some(addr) = find_leaf(&tables, vma.range, page, false) else { continue };
                let mut gather = MmuGather::new(self.pages(), &body.context);
                let part = addr.add((bad.0 - head.0) << FRAME_SHIFT);
                let splits = vma.attributes.flags.contains(VmaFlags::SPLIT);
                let poisoned = if splits { poison_part(&tables, part, &mut gather) } else { None };
                found |= poisoned.unwrap_or_else(|| tables.lookup(part).leaf_size().is_some());
                if splits && poisoned.is_none() && !whole {
                    short = true;
                } else if poisoned.is_none() {
                    // Only this leaf, so that marks of a handler beside it stay.
                    let leaf = tables.lookup(part).leaf_size().unwrap_or(PageSize::Size4K).bytes();
                    let leaf = VirtRange::from_len(part.align_down(leaf), leaf);
                    let done = tables.unmap(&Zap::leaves(leaf), &mut gather);
                    debug_assert_eq!(done, Ok(()), "the ends of a leaf");
                }
                body.add_rss(self.pages(), gather.finish(), Counted::Huge);
            }
        }
        if short { Err(MemoryFailureError::OutOfMemory) } else { Ok(found) }
    }

    /// Unmaps what went bad of a huge page of a closed file that has just been mapped: a failure before that
    /// found no leaf. Where memory is short it unmaps the leaf around the bad part. The caller holds no lock.
    pub(in crate::vm) fn unmap_lost_parts(self, head: Frame, size: HugeSize) {
        let frames = self.pages().frames();
        if !frames.has_bad(head) {
            return;
        }
        for block in FrameRange::folio(head, size.order()).by_block() {
            let marked = frames.has_bad_in_block(block.start);
            let all = (0..block.count).map(|at| block.start.add(at));
            let bad = all.filter(|&frame| marked && frames.is_bad(frame));
            bad.for_each(|frame| _ = self.unmap_huge_everywhere(head, frame, true));
        }
    }

    /// Replaces the leaves of a private huge page by markers in the address spaces whose numbers are
    /// `chosen`. Returns how many. The caller holds no lock.
    pub(in crate::vm) fn take_huge_from(self, head: Frame, chosen: impl Fn(u64) -> bool) -> usize {
        let pages = self.pages();
        let Some(origin) = pages.frames().origin(head) else { return 0 };
        let (mut after, mut taken) = (0, 0);
        while let Some(body) = FoundBody::next_of_family(self.0, origin.family(), after) {
            after = body.mapper.number();
            if !chosen(after) {
                continue;
            }
            let space = body.space.write(self.platform());
            let tables = body.tables(pages);
            let Some(addr) = place_in(&space, &tables, head, origin.addr()) else { continue };
            let found = tables.lookup(addr);
            if let Some(size) = found.leaf_size() {
                let mut gather = MmuGather::new(pages, &body.context);
                taken += usize::from(tables.poison(addr, size, found.entry, &mut gather));
                body.add_rss(pages, gather.finish(), Counted::Huge);
            }
        }
        self.huge().take_returned(pages);
        taken
    }

    /// Drops the page of a file that is in this frame. `None`: no file has one there, or the file is in use.
    fn lose_cached(self, frame: Frame) -> Result<Option<MemoryFailure>, MemoryFailureError> {
        if !self.pages().frames().is_of_file(frame) {
            return Ok(None);
        }
        let mut place = (0, 0);
        while let Some((file, next)) = self.files().next_of_all(self.platform(), place) {
            place = next;
            let done = match file.node().try_close() {
                // `lose_huge` handles these.
                _ if file.node().huge_order().is_some() => Ok(None),
                Some(closed) => self.lose_page(&closed, frame),
                None => Err(MemoryFailureError::Busy),
            };
            self.close(file);
            match done {
                Ok(None) | Err(MemoryFailureError::Busy) => {}
                done => return done,
            }
        }
        Ok(None)
    }

    /// Drops the page of this closed file that is in the frame, if there is one.
    fn lose_page(
        self,
        file: &FileClosed<'_>,
        frame: Frame,
    ) -> Result<Option<MemoryFailure>, MemoryFailureError> {
        let mut from = 0;
        let index = loop {
            match self.files().begin_loss(self.platform(), file, frame, from) {
                FoundPage::Found(index) => break index,
                FoundPage::NotBefore(at) => from = at,
                FoundPage::Busy => return Err(MemoryFailureError::Busy),
                FoundPage::Elsewhere => return Ok(None),
            }
        };
        let prepared = self.files().prepare_loss(self.pages(), file, index);
        let Ok(loss) = prepared else { return Err(MemoryFailureError::OutOfMemory) };
        if loss.is_last_copy() && !ReverseMap::of(self.0).split_around(file, index) {
            self.files().call_off(self.pages(), file, index, loss);
            return Err(MemoryFailureError::OutOfMemory);
        }
        self.unmap_lost(file, index, loss.is_last_copy());
        if self.pages().counts().mapcount(frame) != 0 {
            self.files().call_off(self.pages(), file, index, loss);
            return Err(MemoryFailureError::Busy);
        }
        self.files().lose(self.pages(), file, index, loss);
        self.pages().frames().bury(frame);
        let last = loss.is_last_copy();
        Ok(Some(if last { MemoryFailure::PageLost } else { MemoryFailure::Dropped }))
    }

    /// Unmaps a page of a closed file; with `marked`, leaves markers, since its contents exist nowhere else.
    fn unmap_lost(self, file: &FileClosed<'_>, index: u64, marked: bool) {
        ReverseMap::of(self.0).each_mapper(file.node(), &(index..index + 1), |found| {
            let mut gather = MmuGather::new(self.pages(), &found.body.context);
            found.each_part(&(index..index + 1), |vma, range| {
                if !marked {
                    found.unmap_cached(vma, range, &mut gather);
                    return;
                }
                let leaf = found.tables().lookup(range.start);
                let cached = leaf.leaf_size() == Some(PageSize::Size4K) && !leaf.entry.has(EntryFlags::ANON);
                if cached && !leaf.entry.has(EntryFlags::SPECIAL) {
                    found.tables().poison(range.start, PageSize::Size4K, leaf.entry, &mut gather);
                }
            });
            found.body.add_rss(self.pages(), gather.finish(), file.node().kind().into());
        });
        self.pages().count(Stat::PgscanFile, 1);
    }
}

/// Replaces the leaf of the 4 KiB at `addr`, if any, by a marker, or unmaps it. Returns whether there was one; `None` when
/// a larger leaf must be split and memory is short.
fn poison_part<P: Platform>(
    tables: &PageTables<'_, '_, P>,
    addr: VirtAddr,
    gather: &mut MmuGather<'_, '_, P>,
) -> Option<bool> {
    tables.split_ends(VirtRange::from_len(addr, FRAME_SIZE)).ok()?;
    let found = tables.lookup(addr);
    let mapped = found.leaf_size() == Some(PageSize::Size4K);
    if mapped && !tables.poison(addr, PageSize::Size4K, found.entry, gather) {
        let done = tables.unmap(&Zap::leaves(VirtRange::from_len(addr, FRAME_SIZE)), gather);
        debug_assert_eq!(done, Ok(()), "the ends of a leaf");
    }
    Some(mapped)
}
