//! A frame went bad: what it held is lost, and nothing else.
//!
//! | the frame is | then |
//! |---|---|
//! | free, wherever it is, or kept for a page that is to move there | it is lost ([`crate::page_alloc::Verdict`]) |
//! | anonymous memory | its folio comes apart; every leaf of the frame becomes a marker, and a task that touches one is told ([`FaultError::Poisoned`](crate::error::FaultError::Poisoned)) |
//! | a clean page of a file | it is unmapped and dropped; the next access reads it again |
//! | a page of a file that is newer than the file | as anonymous memory for tasks that mapped it; others read what the file has |
//! | a page of shared anonymous memory | as anonymous memory, and for all that map it later |
//! | part of a private huge page | every leaf of the page becomes a marker, and the page goes back to its pool, which lets go of it ([`crate::hugetlb::HugeFailure`]) |
//! | part of a huge page of a file | the same happens when the file gives the page up; until then it stays, and where parts of it may be mapped by themselves all but the one that went bad can be used |
//! | a page table, a small object, a descriptor | nothing can be done |
//!
//! The order is that of a move ([`crate::vm::migrate::relocate`]): the frame is set aside, and so not freed;
//! its leaves go, one address space after the other; when none is left it is lost. A reader that holds a copy
//! half made throws it away, or keeps what it read before hardware complained.
//!
//! (Linux: `memory_failure()`; the marker is its hwpoison entry.)

use crate::addr::{Frame, FrameRange, Order, PageSize, VirtAddr, VirtRange};
use crate::arch::EntryFlags;
use crate::error::{MemoryFailureError, SplitError};
use crate::filemap::{FileClosed, SoughtPage};
use crate::limits::{BLOCK_SIZE, FRAME_SHIFT, FRAME_SIZE};
use crate::page_alloc::Verdict;
use crate::pgtable::{PageTables, Zap};
use crate::platform::Platform;
use crate::stats::Stat;
use crate::tlb::MmuGather;
use crate::vm::gigantic::cancel::Cancellation;
use crate::vm::handle::handle;
use crate::vm::mapping::vma::VmaFlags;
use crate::vm::rmap::reverse::{ReverseMap, find_leaf, place_in};
use crate::vm::space::found::FoundBody;
use crate::vm::space::rss::Counted;
use crate::vm::space::shared::MmShared;

/// Times that a frame which is just changing hands is looked at again.
const ROUNDS: usize = 16;

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
    /// It held a page of a file with what existed only there: its mappings have a marker.
    PageLost,
    /// It belongs to a page of a pool, which the caller tells
    /// ([`HugePools::memory_failure`](crate::hugetlb::HugePools::memory_failure)).
    Huge,
}

handle! {
    /// Takes memory that went bad out of use.
    MemoryLoss of MmShared
}

impl<P: Platform> MemoryLoss<'_, '_, P> {
    /// A frame went bad. The caller holds no lock.
    ///
    /// # Errors
    /// [`MemoryFailureError`]; nothing has changed then.
    pub(crate) fn memory_failure(self, frame: Frame) -> Result<MemoryFailure, MemoryFailureError> {
        Cancellation::of(self.0).cancel_around(frame);
        for _ in 0..ROUNDS {
            let done = match self.pages().condemn(frame) {
                Verdict::Lost => Some(MemoryFailure::Free),
                Verdict::Marked => Some(MemoryFailure::Marked),
                Verdict::Huge => {
                    self.lose_huge(frame);
                    Some(MemoryFailure::Huge)
                }
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

    /// What was marked in a folio of whole blocks before it was mapped is lost now. What memory does not
    /// suffice for stays as it is until the folio is freed. The caller holds no lock.
    pub(in crate::vm) fn lose_marked(self, folio: FrameRange) {
        for piece in folio.by_block() {
            // All of a block's at once: it comes apart with the first of them.
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

    /// Puts markers in the place of an anonymous frame's leaves; whether all of them went.
    fn lose_anonymous(self, frame: Frame) -> Result<bool, MemoryFailureError> {
        let pages = self.pages();
        let Some(start) = pages.frames().folio_start(frame) else { return Ok(false) };
        if pages.frames().folio_rest(start) > Order::BLOCK.frames() {
            match ReverseMap::of(self.0).split_folio(start, Order::BLOCK) {
                // It was unmapped, or another task splits or fills it; it is looked at anew.
                Err(SplitError::NotAFolio | SplitError::InUse) => return Ok(false),
                Err(SplitError::OutOfMemory) => return Err(MemoryFailureError::OutOfMemory),
                Ok(_) => {}
            }
        }
        let Some(start) = pages.frames().folio_start(frame) else { return Ok(false) };
        if ReverseMap::of(self.0).split_folio(start, Order::FRAME) == Err(SplitError::OutOfMemory) {
            return Err(MemoryFailureError::OutOfMemory);
        }
        let one = FrameRange::folio(frame, Order::FRAME);
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
        unsafe { pages.counts().release(one) };
        marked.map(|()| false)
    }

    fn mark_everywhere(self, frame: Frame) -> Result<(), MemoryFailureError> {
        let Some(origin) = self.pages().frames().origin(frame) else { return Ok(()) };
        let mut after = 0;
        while let Some(body) = FoundBody::next_of_family(self.0, origin.family(), after) {
            after = body.mapper.number();
            let space = body.space.write(self.platform());
            let tables = PageTables::new(self.pages(), &body.context);
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

    /// Sees to a huge page in use, of which a frame was marked. A private one is taken from all that map it,
    /// by markers, and goes back to its pool. One that belongs to a file is unmapped, and stays with the file
    /// until that gives it up: a task that faults on it is told, as the file has nothing else for that place.
    /// (Linux keeps it likewise, since 6.2.)
    fn lose_huge(self, frame: Frame) {
        let Some(head) = self.pages().frames().folio_start(frame) else { return };
        if self.pages().frames().is_lent(head) {
            self.take_huge_from(head, |_| true);
        } else {
            self.unmap_huge_everywhere(head, frame);
        }
    }

    /// Unmaps the huge page of a file in which this frame is, or that frame alone where parts of pages may be
    /// mapped by themselves. Nothing leads from a page to its file, so this looks at each leaf of each
    /// mapping of huge pages: it does not happen often. The caller holds no lock.
    fn unmap_huge_everywhere(self, head: Frame, bad: Frame) {
        let mut after = (0, 0);
        while let Some((body, next)) = FoundBody::next_of_all(self.0, after) {
            after = next;
            let space = body.space.write(self.platform());
            let tables = PageTables::new(self.pages(), &body.context);
            for vma in space.tree.iter().filter(|_| space.huge) {
                // A mapping of pages of another size has none of this one, but may have its neighbours.
                let size = vma
                    .attributes
                    .huge_size()
                    .filter(|size| self.pages().frames().is_huge(head, size.order()));
                let Some(size) = size else { continue };
                let page = FrameRange::folio(head, size.order());
                let Some(addr) = find_leaf(&tables, vma.range, page, false) else { continue };
                let mut gather = MmuGather::new(self.pages(), &body.context);
                let part = addr.add((bad.0 - head.0) << FRAME_SHIFT);
                let split = vma.attributes.flags.contains(VmaFlags::SPLIT);
                if !split || !poison_part(&tables, part, &mut gather) {
                    // The leaf alone: what a handler has marked beside it stays marked.
                    let leaf = tables.lookup(part).leaf_size().unwrap_or(PageSize::Size4K).bytes();
                    let leaf = VirtRange::from_len(part.align_down(leaf), leaf);
                    let done = tables.unmap(&Zap::leaves(leaf), &mut gather);
                    debug_assert_eq!(done, Ok(()), "the ends of a leaf");
                }
                body.add_rss(self.pages(), gather.finish(), Counted::Huge);
            }
        }
    }

    /// Puts markers in the place of the leaves of a private huge page, in the address spaces that are
    /// `chosen`; how many. The caller holds no lock.
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
            let tables = PageTables::new(pages, &body.context);
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

    /// Drops the page of a file that a frame holds. `None`: no file has one there now, or the file is in use
    /// at the moment.
    fn lose_cached(self, frame: Frame) -> Result<Option<MemoryFailure>, MemoryFailureError> {
        if !self.pages().frames().is_of_file(frame) {
            return Ok(None);
        }
        let mut place = (0, 0);
        while let Some((file, next)) = self.files().next_of_all(self.platform(), place) {
            place = next;
            let done = match file.node().try_close() {
                // Huge pages are their pool's.
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

    /// Drops the page of a closed file that a frame holds, if one of its pages is there.
    fn lose_page(
        self,
        file: &FileClosed<'_>,
        frame: Frame,
    ) -> Result<Option<MemoryFailure>, MemoryFailureError> {
        let mut from = 0;
        let index = loop {
            match self.files().begin_loss(self.platform(), file, frame, from) {
                SoughtPage::Found(index) => break index,
                SoughtPage::NotBefore(at) => from = at,
                SoughtPage::Busy => return Err(MemoryFailureError::Busy),
                SoughtPage::Elsewhere => return Ok(None),
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

    /// Unmaps a page of a closed file; with markers where what it held is nowhere else.
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

/// Puts a marker in the place of the 4 KiB at `addr`, if they are mapped; whether they are not any more. Not
/// for want of memory, when what maps them must be split.
fn poison_part<P: Platform>(
    tables: &PageTables<'_, '_, P>,
    addr: VirtAddr,
    gather: &mut MmuGather<'_, '_, P>,
) -> bool {
    if tables.split_ends(VirtRange::from_len(addr, FRAME_SIZE)).is_err() {
        return false;
    }
    let found = tables.lookup(addr);
    found.leaf_size() != Some(PageSize::Size4K) || tables.poison(addr, PageSize::Size4K, found.entry, gather)
}

const _: () = assert!(FRAME_SIZE == PageSize::Size4K.bytes());
