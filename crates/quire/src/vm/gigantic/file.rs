//! Pages of 1 GiB of files, cleared piece by piece while shared mappings map them (decision 60).
//!
//! The file has the page from the first fault on. The entry in
//! [`GiganticClears`](super::state::GiganticClears) says which pieces are *ready*: they were zero once, and hold the
//! file's contents since. No leaf maps a piece that is not ready, and
//! [`File::read_at`](crate::vm::File::read_at) reads zeroes there. A CPU claims a piece by the mark of its
//! block and clears it without any lock, as for pages of private mappings ([`super::pool`]).
//!
//! - A fault makes the piece of 2 MiB at its address ready and maps it, each address space by leaves of its
//!   own.
//! - Once all pieces are zero or ready the page is *ended*: each mapping that has some leaves gets one leaf,
//!   under its address space's lock for writing, and the entry goes. So the CPU that ends it needs no page to
//!   be mapped anywhere, and idle CPUs only clear.
//! - What needs the whole page *completes* it first, without any lock: private mappings of the file, mappings
//!   with a handler of faults, those whose parts programs map by themselves (`MADV_SPLIT`), populating,
//!   moves, memory that goes bad, and verbs that take the lock by
//!   [`PoolFaults::lock_whole`](super::pool::PoolFaults).
//! - A file that drops the page *cancels* it. The file is closed or cut off then, so no fault makes a piece
//!   ready.
//! - `munmap`, `MADV_DONTNEED` and exit do nothing for it: the page stays with its file. Nor do `fork`, which
//!   copies no leaf of a shared mapping, `mprotect` and `mremap`, which handle leaves of 2 MiB.
//!
//! A CPU ends a page as a user of the file ([`FileNode::enter`]), so no page is dropped meanwhile.

use crate::addr::{Frame, FrameRange, Order, PageSize, VirtAddr, VirtRange};
use crate::arch::Level;
use crate::error::{FaultError, MapError};
use crate::filemap::{FileNode, HugePage};
use crate::limits::{BLOCK_FRAMES, BLOCK_SIZE, FRAME_SHIFT, GIGANTIC_CLEARS, TABLE_ENTRIES};
use crate::page_alloc::BlockClear;
use crate::pgtable::Zap;
use crate::platform::Platform;
use crate::tlb::MmuGather;
use crate::vm::fault::flags::leaf_flags;
use crate::vm::fault::step::{Caller, FaultKind, Step};
use crate::vm::gigantic::pool::PoolClears;
use crate::vm::gigantic::state::{Folio, NO_OWNER, Pieces, Source};
use crate::vm::handle::handle;
use crate::vm::mapping::vma::{Backing, Vma, VmaFlags};
use crate::vm::rmap::reverse::ReverseMap;
use crate::vm::space::address_space::AddressSpace;
use crate::vm::space::body::MmBody;
use crate::vm::space::rss::Counted;
use crate::vm::space::shared::MmShared;
use crate::vm::space::state::Space;

const FRAMES: u64 = PageSize::Size1G.frames();

handle! {
    /// The pages of files that are cleared piece by piece.
    FileClears of MmShared
}

impl<P: Platform> FileClears<'_, '_, P> {
    /// Begins with a page that the caller took for this place of a file, which it has claimed and which has
    /// no page; returns whether it did.
    pub(in crate::vm) fn begin(self, file: &FileNode, index: u64, frame: Frame) -> bool {
        // Before any leaf: the file's drop looks for leaves of pieces, too.
        file.allow_pieces();
        let source = Source::File { number: file.number(), index };
        let page = Folio::new((NO_OWNER, 0), VirtAddr(0), frame, source);
        self.gigantic_clears().begin(self.pages(), page)
    }

    /// Whether a page of a file is in pieces.
    pub(in crate::vm) fn is_in_pieces(self, page: Frame) -> bool {
        let clears = self.gigantic_clears();
        let is_it = |folio: &Folio| folio.is_of_file() && folio.frame == page;
        clears.any() && clears.lock(self.platform()).iter().flatten().any(is_it)
    }

    /// Whether a frame of a file's page belongs to a piece that is not ready: it reads as zero then.
    pub(in crate::vm) fn reads_as_zero(self, page: Frame, inside: u64) -> bool {
        let clears = self.gigantic_clears();
        let missing = |folio: &Folio| !folio.done.contains((inside / BLOCK_FRAMES as u64) as usize);
        let is_it = |folio: &Folio| folio.is_of_file() && folio.frame == page && missing(folio);
        clears.any() && clears.lock(self.platform()).iter().flatten().any(is_it)
    }

    /// The step that completes a page, if it is in pieces.
    pub(in crate::vm) fn completes(self, page: Frame) -> Option<Step> {
        self.is_in_pieces(page).then_some(Step::Whole(page))
    }

    /// Ends a page all of whose pieces are ready or zero. Returns whether it did: not while a task has the
    /// file closed. The caller holds no lock.
    pub(super) fn try_end(self, source: Source, page: Frame) -> bool {
        let Source::File { number, index } = source else { return false };
        let Some(file) = self.files().find_nameless(self.platform(), number) else { return false };
        let used = file.node().enter().filter(|used| !used.node().is_cut_off(index * FRAMES));
        let ended = used.is_some() && self.end(file.node(), index, page);
        drop(used);
        self.close(file);
        ended
    }

    /// The same, for a user of the file. Not before the file has the page: the fault that brings it may lack
    /// memory, and gives it back then. From there on it stays while the file has users.
    fn end(self, file: &FileNode, index: u64, page: Frame) -> bool {
        let there = self.files().huge_page(self.platform(), file, index);
        if !matches!(there, Some(HugePage::Present { frame, .. }) if frame == page) {
            return false;
        }
        let Some(slot) = self.make_ready(file, index, page) else { return false };
        let shown = index * FRAMES..(index + 1) * FRAMES;
        ReverseMap::of(self.0).each_mapper_alone(file, &shown, |found| {
            found.each_part(&shown, |vma, range| {
                let mut any = false;
                found.tables().runs(range, |_| any = true);
                if any {
                    self.make_one_leaf(found.body, vma, range, page);
                }
            });
        });
        // Another CPU may have ended it, too.
        self.gigantic_clears().end_entry(
            self.platform(),
            slot,
            (Source::File { number: file.number(), index }, page),
        );
        true
    }

    /// Makes all pieces ready that are zero. Returns the entry's slot if no other is left.
    fn make_ready(self, file: &FileNode, index: u64, page: Frame) -> Option<usize> {
        let mut folios = self.gigantic_clears().lock(self.platform());
        let source = Source::File { number: file.number(), index };
        let mut all = folios.iter_mut().enumerate();
        let (slot, folio) = all.find_map(|(slot, folio)| {
            Some((slot, folio.as_mut().filter(|folio| folio.source == source && folio.frame == page)?))
        })?;
        let frames = self.pages().frames();
        for at in 0..TABLE_ENTRIES {
            if !folio.done.contains(at) && frames.is_block_zero(page, at as u32) {
                take_ready(self.0, folio, at);
            }
        }
        (folio.done == Pieces::ALL && folio.cancelled == Pieces::NONE).then_some(slot)
    }

    /// Maps all of a page that is ready by one leaf, in a mapping that has leaves of 2 MiB, or an empty
    /// table, there. Where pieces may not be mapped it removes an empty table, so that a fault can map the
    /// leaf. The address space's lock is held for writing.
    pub(in crate::vm) fn make_one_leaf(self, body: &MmBody, vma: &Vma, range: VirtRange, page: Frame) {
        let tables = body.tables(self.pages());
        if tables.lookup(range.start).level > Level::PMD {
            return;
        }
        if !maps_pieces(vma) {
            return self.remove_empty_tables(body, range);
        }
        let flags = leaf_flags(&vma.attributes, true);
        let pieces = (0..TABLE_ENTRIES as u64).map(|at| (at * BLOCK_SIZE, at * BLOCK_FRAMES as u64));
        let made = pieces.filter(|&(bytes, frames)| {
            let (addr, frame) = (range.start.add(bytes), page.add(frames));
            // SAFETY: invariants 1 and F3: the file has the page while the caller uses it, and its entry is gone
            // or all its pieces are ready.
            unsafe { tables.map_large(addr, frame, PageSize::Size2M, flags) }.is_ok()
        });
        let made = made.count() as i64;
        body.rss.add_as(self.platform(), Counted::Huge, made * BLOCK_FRAMES as i64);
        if tables.collapse_gigantic(range.start) != Ok(true) {
            // The leaves differ. A fault will map the page whole.
            let mut gather = MmuGather::new(self.pages(), &body.context);
            let done = tables.unmap(&Zap::tables(range, range), &mut gather);
            debug_assert_eq!(done, Ok(()), "no leaf reaches over an end");
            body.add_rss(self.pages(), gather.finish(), Counted::Huge);
        }
    }

    /// Removes tables that map nothing, and have no mark, from pages of a mapping. The address space's lock
    /// is held for writing.
    pub(in crate::vm) fn remove_empty_tables(self, body: &MmBody, range: VirtRange) {
        let mut gather = MmuGather::new(self.pages(), &body.context);
        body.tables(self.pages()).detach_unused(&Zap::tables(range, range), &mut gather);
        gather.finish();
    }
}

handle! {
    /// An address space that maps files whose pages are cleared piece by piece.
    FileFaults of AddressSpace
}

impl<P: Platform> FileFaults<'_, '_, P> {
    /// The next step towards an access to a file's page, if it is in pieces. The lock is held for reading,
    /// and the caller has claimed the place.
    pub(in crate::vm) fn bring(
        self,
        vma: &Vma,
        (page, addr): (Frame, VirtAddr),
        caller: Caller,
    ) -> Option<Result<Step, FaultError>> {
        let (memory, clears) = (self.memory, self.memory.gigantic_clears());
        if !clears.any() {
            return None;
        }
        let mut folios = clears.lock(memory.platform());
        let folio = folios.iter_mut().flatten().find(|folio| folio.is_of_file() && folio.frame == page)?;
        if !maps_pieces(vma) || caller != Caller::Access || folio.done == Pieces::ALL {
            return Some(Ok(Step::Whole(page)));
        }
        let index = (addr.0 % PageSize::Size1G.bytes() / BLOCK_SIZE) as usize;
        if folio.cancelled.contains(index) {
            return Some(Ok(Step::Again));
        }
        folio.touched = index;
        if !folio.done.contains(index) {
            match memory.pages().frames().claim_block_clear(page, index as u32) {
                BlockClear::Busy => return Some(Ok(Step::Again)),
                BlockClear::Claimed => return Some(Ok(Step::ClearBlock { page, caller })),
                BlockClear::Zero => take_ready(memory, folio, index),
            }
        }
        let last = folio.done == Pieces::ALL;
        drop(folios);
        let frames = FrameRange::folio(page.add((index * BLOCK_FRAMES) as u64), Order::BLOCK);
        Some(match self.map_piece(vma, addr.align_down(BLOCK_SIZE), frames) {
            Ok(()) if last => Ok(Step::Whole(page)),
            Ok(()) => Ok(Step::done(Order::BLOCK, FaultKind::FileMinor)),
            Err(MapError::OutOfMemory) => Err(FaultError::OutOfMemory),
            Err(_) => Ok(Step::Again),
        })
    }

    fn map_piece(self, vma: &Vma, addr: VirtAddr, frames: FrameRange) -> Result<(), MapError> {
        let flags = leaf_flags(&vma.attributes, true);
        // SAFETY: invariants 1 and F3: the file has the page while the caller uses it, and `bring` has found the
        // piece ready.
        unsafe { self.tables().map_large(addr, frames.start, PageSize::Size2M, flags) }?;
        self.rss.add_as(self.memory.platform(), Counted::Huge, frames.count as i64);
        Ok(())
    }

    /// A page in pieces of a file that a mapping shows in this range. The lock is held for writing, so a page
    /// that begins meanwhile has no leaves here.
    pub(super) fn page_in(self, space: &Space, range: VirtRange) -> Option<Frame> {
        let clears = self.memory.gigantic_clears();
        if !clears.any() {
            return None;
        }
        // A walk of all mappings must not keep the faults of all address spaces waiting.
        let folios = clears.lock(self.memory.platform());
        let pages: [Option<(Source, Frame)>; GIGANTIC_CLEARS] = core::array::from_fn(|slot| {
            folios[slot].as_ref().filter(|folio| folio.is_of_file()).map(|folio| (folio.source, folio.frame))
        });
        drop(folios);
        pages.into_iter().flatten().find(|&(source, _)| shows(space, range, source)).map(|(_, page)| page)
    }
}

/// Makes a piece ready that is zero and not claimed.
fn take_ready<P: Platform>(memory: &MmShared<'_, P>, folio: &mut Folio, index: usize) {
    PoolClears::of(memory).take_piece(folio, index);
    folio.done.insert(index);
}

/// Whether faults may map pieces here, and one leaf in their place.
fn maps_pieces(vma: &Vma) -> bool {
    let attributes = &vma.attributes;
    !attributes.is_private() && !attributes.handler.is_some() && !attributes.flags.contains(VmaFlags::SPLIT)
}

/// Whether a mapping of the range, which may show pieces, has a page of a file there.
fn shows(space: &Space, range: VirtRange, page: Source) -> bool {
    let Source::File { number, index } = page else { return false };
    space.tree.overlapping(range).filter(|vma| maps_pieces(vma)).any(|vma| {
        let Backing::File { file, page_offset } = &vma.attributes.backing else { return false };
        let part = vma.range.intersect(range);
        let first = *page_offset + ((part.start.0 - vma.range.start.0) >> FRAME_SHIFT);
        let shown = first..first + part.pages().max(1);
        file.node().number() == number && shown.start < (index + 1) * FRAMES && index * FRAMES < shown.end
    })
}
