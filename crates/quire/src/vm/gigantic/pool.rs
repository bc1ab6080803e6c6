//! Pages of 1 GiB of pools, cleared piece by piece while a private mapping maps them.
//!
//! A fault waits for its own piece of 2 MiB. It and idle CPUs clear the others. A CPU claims a piece by the mark
//! of its block ([`BlockClear`]) and clears it without any lock. Then it maps the piece under the address
//! space's lock for reading. One leaf replaces the 512 when all pieces are mapped.
//!
//! The entry in [`GiganticClears`](super::state::GiganticClears) owns the page; leaves alone own it once it is
//! one leaf. It is there exactly while the page is mapped in pieces, which only faults and this file know:
//!
//! - A verb that would meet such a page *completes* it first ([`PoolFaults::lock_complete`]). It clears what is
//!   left as idle CPUs do, and holds no lock meanwhile.
//! - A verb that unmaps the page *cancels* it ([`PoolClears::cancel`]). The page goes back to its pool with its
//!   reservation, and with the marks of the pieces that were cleared and never mapped.

use core::ops::Range;

use crate::addr::{Frame, FrameRange, Order, PageSize, VirtAddr, VirtRange};
use crate::arch::EntryFlags;
use crate::clear::Extent;
use crate::error::{Cancelled, FaultError, MapError};
use crate::filemap::FileNode;
use crate::hugetlb::HugeSize;
use crate::limits::GIGANTIC_CLEARS;
use crate::page_alloc::BlockClear;
use crate::pgtable::Zap;
use crate::platform::{Platform, TouchHint};
use crate::tlb::MmuGather;
use crate::vm::fault::flags::leaf_flags;
use crate::vm::fault::step::{Caller, FaultKind, Step};
use crate::vm::gigantic::clear::{GiganticClearing, place_of};
use crate::vm::gigantic::file::{FileClears, FileFaults};
use crate::vm::gigantic::state::{Folio, Folios, NO_OWNER, Piece, Pieces, Source};
use crate::vm::handle::handle;
use crate::vm::mapping::vma::{Vma, VmaFlags};
use crate::vm::rmap::reverse::ReverseMap;
use crate::vm::space::address_space::AddressSpace;
use crate::vm::space::body::MmBody;
use crate::vm::space::guard::SpaceGuard;
use crate::vm::space::rss::Counted;
use crate::vm::space::shared::MmShared;

const BYTES: u64 = PageSize::Size1G.bytes();

handle! {
    /// The pages of pools that are cleared piece by piece, in all address spaces.
    PoolClears of MmShared
}

/// What there is to do for a page.
enum Work {
    /// To clear this piece, or to map it if it is zero.
    Piece(Piece, BlockClear),
    /// To end this page of a file, all of whose pieces are zero or ready.
    End(Source, Frame),
}

/// What a CPU did for pages that it chose.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Advance {
    /// A piece was mapped or cleared, or is not wanted any more.
    Done,
    /// Other CPUs clear all pieces that are left.
    Busy,
    /// No piece is left, or there is no memory for the table.
    Nothing,
}

impl<P: Platform> PoolClears<'_, '_, P> {
    /// Clears and maps one piece that a task may touch later, on an idle CPU. Returns whether there was one
    /// and the running task is not to be killed. The caller holds no lock.
    pub(super) fn clear_ahead(self) -> bool {
        self.advance(|_| true, || self.platform().is_dying()) == Ok(Advance::Done)
    }

    /// Clears and maps a piece of one of the chosen pages: the next ahead. The caller holds no lock.
    fn advance(self, chosen: impl Fn(&Folio) -> bool, stop: impl Fn() -> bool) -> Result<Advance, Cancelled> {
        let (mut busy, mut after) = (false, 0);
        let (piece, block) = loop {
            let mut folios = self.gigantic_clears().lock(self.platform());
            let mut slots = folios.iter_mut().enumerate().skip(after);
            let work = slots.find_map(|(slot, folio)| {
                let folio = folio.as_mut().filter(|folio| folio.is_hugetlb() && chosen(folio))?;
                Some((slot, self.next_work(slot, folio, &mut busy)?))
            });
            drop(folios);
            match work {
                Some((_, Work::Piece(piece, block))) => break (piece, block),
                Some((_, Work::End(source, page))) if FileClears::of(self.0).try_end(source, page) => {
                    return Ok(Advance::Done);
                }
                // A task has the file closed, maybe for long: another page may have work.
                Some((slot, Work::End(..))) => (busy, after) = (true, slot + 1),
                None => return Ok(if busy { Advance::Busy } else { Advance::Nothing }),
            }
        };
        if block == BlockClear::Claimed {
            let extent = Extent::new(FrameRange::folio(piece.folio, Order::GIGANTIC), TouchHint::Unknown);
            let store = self.pages().store();
            let cleared = store.clear_claimed_until(&extent, piece.index as u32, &stop);
            if stop() {
                return Err(Cancelled);
            }
            if !cleared || piece.owner == NO_OWNER {
                return Ok(Advance::Done);
            }
        }
        let clearing = GiganticClearing::of(self.0);
        let Some(body) = clearing.find_body(piece.family, piece.owner) else { return Ok(Advance::Done) };
        let space = body.space.read(self.platform());
        let mapped = match (self.claim_to_map(&piece), space.tree.find(piece.addr())) {
            (true, Some(vma)) => self.map_piece(&body, vma, &piece),
            _ => return Ok(Advance::Done),
        };
        drop(space);
        if mapped == Ok(true) {
            let space = body.space.write(self.platform());
            self.end_complete(&body, VirtRange::from_len(piece.base, BYTES));
            drop(space);
        }
        Ok(if mapped.is_ok() { Advance::Done } else { Advance::Nothing })
    }

    /// The next piece of a page to be cleared or mapped. `busy` is set if other CPUs clear pieces of it.
    fn next_work(self, slot: usize, folio: &mut Folio, busy: &mut bool) -> Option<Work> {
        let (frames, mut clears, mut zero) = (self.pages().frames(), false, Pieces::NONE);
        let piece = folio.missing_ahead().find_map(|index| {
            match frames.claim_block_clear(folio.frame, index as u32) {
                BlockClear::Busy => clears = true,
                // A file's piece is mapped by faults alone. It stays zero until it is ready.
                BlockClear::Zero if folio.is_of_file() => zero.insert(index),
                block => return Some(Work::Piece(folio.piece(slot, index), block)),
            }
            None
        });
        folio.zero.insert_all(zero);
        if piece.is_some() {
            return piece;
        }
        *busy |= clears;
        (folio.is_of_file() && !clears).then_some(Work::End(folio.source, folio.frame))
    }

    /// Claims a piece that is zero, to map it, unless it is mapped or its page is gone. The address space's
    /// lock is held for reading.
    fn claim_to_map(self, piece: &Piece) -> bool {
        let mut folios = self.gigantic_clears().lock(self.platform());
        let Some(folio) = folios[piece.slot].as_mut() else { return false };
        let same = folio.is_hugetlb() && (folio.owner, folio.base) == (piece.owner, piece.base);
        let zero = || self.pages().frames().is_block_zero(piece.folio, piece.index as u32);
        let claims = same && folio.frame == piece.folio && !folio.claimed.contains(piece.index) && zero();
        if claims {
            self.take_piece(folio, piece.index);
        }
        claims
    }

    /// Claims a piece that is zero and not claimed.
    pub(super) fn take_piece(self, folio: &mut Folio, index: usize) {
        self.pages().frames().forget_block_zeroes(folio.frame, index as u32);
        folio.claimed.insert(index);
    }

    /// Maps a piece that is claimed for it. Returns whether it was the last. The address space's lock is held
    /// for reading, so that the page is not cancelled.
    fn map_piece(self, body: &MmBody, vma: &Vma, piece: &Piece) -> Result<bool, MapError> {
        let flags = leaf_flags(&vma.attributes, true).union(EntryFlags::ANON);
        let tables = body.tables(self.pages());
        let frames = piece.frames();
        // SAFETY: invariant 1: the entry owns the page while pieces of it are mapped.
        let mapped = unsafe { tables.map_large(piece.addr(), frames.start, PageSize::Size2M, flags) };
        if mapped.is_ok() {
            body.rss.add_as(self.platform(), Counted::Huge, frames.count as i64);
        }
        let mut folios = self.gigantic_clears().lock(self.platform());
        let Some(folio) = folios[piece.slot].as_mut() else { return Ok(false) };
        match mapped {
            Ok(()) => folio.done.insert(piece.index),
            Err(_) => {
                self.pages().frames().note_huge_zero(piece.folio, piece.index as u32);
                folio.claimed.remove(piece.index);
            }
        }
        mapped.map(|()| folio.done == Pieces::ALL)
    }

    /// Makes one leaf of each page in the range all of whose pieces are mapped, and cancels pages of which
    /// none is. Returns whether no other is left. The address space's lock is held for writing.
    fn end_complete(self, body: &MmBody, range: VirtRange) -> bool {
        let mut all = true;
        for slot in 0..GIGANTIC_CLEARS {
            let folio = self.gigantic_clears().lock(self.platform())[slot];
            match folio.filter(|folio| folio.is_pool_page_in(body.mapper.number(), range)) {
                Some(folio) if folio.done == Pieces::ALL => self.end_one(body, slot, &folio),
                Some(folio) if folio.done == Pieces::NONE => self.cancel_one(body, slot, &folio),
                Some(_) => all = false,
                None => {}
            }
        }
        all
    }

    fn end_one(self, body: &MmBody, slot: usize, folio: &Folio) {
        let one = body.tables(self.pages()).collapse_gigantic(folio.base);
        debug_assert_eq!(one, Ok(true), "512 leaves with the same rights");
        self.pages().frames().lend_huge(folio.frame);
        self.gigantic_clears().end_entry(self.platform(), slot, (folio.source, folio.frame));
    }

    /// Cancels the pages in a range whose memory the address space gives up. Its lock is held for writing.
    #[inline]
    pub(in crate::vm) fn cancel(self, body: &MmBody, range: VirtRange) {
        if self.gigantic_clears().any() {
            self.cancel_in(body, range);
        }
    }

    #[cold]
    fn cancel_in(self, body: &MmBody, range: VirtRange) {
        for slot in 0..GIGANTIC_CLEARS {
            let folio = self.gigantic_clears().lock(self.platform())[slot];
            if let Some(folio) = folio.filter(|folio| folio.is_pool_page_in(body.mapper.number(), range)) {
                self.cancel_one(body, slot, &folio);
            }
        }
    }

    /// Cancels these pages of a file, the private ones in each address space that maps them too. No fault can
    /// bring new ones. The caller holds no lock.
    pub(in crate::vm) fn cancel_of_file(self, file: &FileNode, pages: &Range<u64>) {
        if !self.gigantic_clears().any() {
            return;
        }
        ReverseMap::of(self.0).each_mapper_alone(file, pages, |found| {
            found.each_part(pages, |_, range| self.cancel(found.body, range));
        });
        self.gigantic_clears().cancel_of_file(self.pages(), file, pages);
    }

    fn cancel_one(self, body: &MmBody, slot: usize, folio: &Folio) {
        let (pages, whole) = (self.pages(), VirtRange::from_len(folio.base, BYTES));
        // No CPU claims a piece from here on.
        if let Some(entry) = &mut self.gigantic_clears().lock(self.platform())[slot] {
            entry.cancelled = Pieces::ALL;
        }
        pages.frames().wait_for_huge_clears(folio.frame, Order::GIGANTIC);
        let mut gather = MmuGather::new(pages, &body.context);
        let done = body.tables(pages).unmap(&Zap::tables(whole, whole), &mut gather);
        debug_assert_eq!(done, Ok(()), "no leaf reaches over an end");
        body.add_rss(pages, gather.finish(), Counted::Huge);
        self.gigantic_clears().end_entry(self.platform(), slot, (folio.source, folio.frame));
        // SAFETY: invariant 1: the entry owned the page, and no leaf maps it.
        unsafe { self.huge().give_from(pages, HugeSize::Size1G, folio.frame, folio.used_reservation()) };
    }

    /// Completes the page around a frame, if it is mapped in pieces, and also if the task is to be killed: what
    /// it has stored stays. The caller holds no lock.
    pub(in crate::vm) fn complete_around(self, frame: Frame) {
        let done = self.complete_around_until(frame, || false);
        debug_assert_eq!(done, Ok(()), "it is not to stop");
    }

    /// The same, until `stop` says yes.
    ///
    /// # Errors
    /// [`Cancelled`]: the page is still in pieces.
    pub(in crate::vm) fn complete_around_until(
        self,
        frame: Frame,
        stop: impl Fn() -> bool,
    ) -> Result<(), Cancelled> {
        let around = |folio: &Folio| FrameRange::folio(folio.frame, Order::GIGANTIC).contains(frame);
        while self.gigantic_clears().any()
            && let Some(folio) = self.first(|folio| folio.is_hugetlb() && around(folio))
        {
            self.advance_all(around, &stop)?;
            if !folio.is_of_file()
                && let Some(body) = GiganticClearing::of(self.0).find_body(folio.family, folio.owner)
            {
                let space = body.space.write(self.platform());
                self.end_complete(&body, VirtRange::from_len(folio.base, BYTES));
                drop(space);
            }
        }
        Ok(())
    }

    fn first(self, chosen: impl Fn(&Folio) -> bool) -> Option<Folio> {
        self.gigantic_clears().lock(self.platform()).iter().flatten().find(|folio| chosen(folio)).copied()
    }

    /// Clears and maps all pieces of the chosen pages, until `stop` says yes.
    fn advance_all(self, chosen: impl Fn(&Folio) -> bool, stop: impl Fn() -> bool) -> Result<(), Cancelled> {
        while !stop() {
            match self.advance(&chosen, &stop)? {
                Advance::Done => self.platform().reschedule_point(),
                Advance::Busy => self.platform().relax(),
                Advance::Nothing => return Ok(()),
            }
        }
        Err(Cancelled)
    }
}

handle! {
    /// An address space whose private pages of pools are cleared piece by piece.
    PoolFaults of AddressSpace
}

impl<'a, P: Platform> PoolFaults<'a, '_, P> {
    /// Whether a page of this size may be cleared piece by piece for the mapping.
    pub(in crate::vm) fn may_begin(self, vma: &Vma, size: HugeSize) -> bool {
        let memory = self.memory;
        size == HugeSize::Size1G
            && !vma.attributes.handler.is_some()
            && !vma.attributes.flags.contains(VmaFlags::SPLIT)
            && memory.policy().on_demand
            && memory.pages().store().remembers_zeroes()
            && memory.gigantic_clears().has_room()
    }

    /// Begins with a page that the caller took for an unmapped place, which it has claimed, from its pool;
    /// returns whether it did: the entry owns the page then. The lock is held for reading.
    pub(in crate::vm) fn begin(self, base: VirtAddr, frame: Frame, reserved: bool) -> bool {
        let owner = (self.mapper.number(), self.family);
        let page = Folio::new(owner, base, frame, Source::Pool { reserved });
        self.memory.gigantic_clears().begin(self.memory.pages(), page)
    }

    /// The next step towards an access, if a page is cleared piece by piece there. The lock is held for
    /// reading.
    #[inline]
    pub(in crate::vm) fn bring(
        self,
        vma: &Vma,
        addr: VirtAddr,
        caller: Caller,
    ) -> Option<Result<Step, FaultError>> {
        if !self.memory.gigantic_clears().any() {
            return None;
        }
        let (base, index) = place_of(addr);
        let clears = PoolClears::of(self.memory);
        let mut folios = clears.gigantic_clears().lock(self.memory.platform());
        let (slot, folio) = self.find(&mut folios, base)?;
        if folio.cancelled.contains(index) || folio.claimed.contains(index) {
            return Some(Ok(Step::Again));
        }
        folio.touched = index;
        match self.memory.pages().frames().claim_block_clear(folio.frame, index as u32) {
            BlockClear::Busy => Some(Ok(Step::Again)),
            BlockClear::Claimed => Some(Ok(Step::ClearBlock { page: folio.frame, caller })),
            BlockClear::Zero => {
                clears.take_piece(folio, index);
                let piece = folio.piece(slot, index);
                drop(folios);
                Some(match clears.map_piece(self.body(), vma, &piece) {
                    Ok(true) => Ok(Step::Complete),
                    Ok(false) => Ok(Step::done(Order::BLOCK, FaultKind::Anon)),
                    Err(MapError::OutOfMemory) => Err(FaultError::OutOfMemory),
                    Err(_) => Ok(Step::Again),
                })
            }
        }
    }

    fn find(self, folios: &mut Folios, base: VirtAddr) -> Option<(usize, &mut Folio)> {
        let owner = self.mapper.number();
        let own = |folio: &&mut Folio| folio.is_hugetlb() && (folio.owner, folio.base) == (owner, base);
        folios.iter_mut().enumerate().find_map(|(slot, folio)| Some((slot, folio.as_mut().filter(own)?)))
    }

    /// Clears the claimed piece around an address, as `extent` says of the page. The caller holds no lock.
    ///
    /// # Errors
    /// [`Cancelled`]: another task may clear the piece.
    pub(in crate::vm) fn clear_block(self, addr: VirtAddr, extent: &Extent) -> Result<(), Cancelled> {
        let (_, index) = place_of(addr);
        self.memory.pages().store().clear_claimed(extent, index as u32).map(drop)
    }

    /// Takes the lock for writing, with no private page in the range mapped in pieces. Completes them first.
    /// Pages of files stay in pieces: their leaves may be moved, protected and left to a parent.
    pub(in crate::vm) fn lock_complete(self, range: VirtRange) -> SpaceGuard<'a, P> {
        let (clears, owner) = (PoolClears::of(self.memory), self.mapper.number());
        loop {
            let space = self.0.lock();
            if !self.memory.gigantic_clears().any() || clears.end_complete(self.body(), range) {
                return space;
            }
            drop(space);
            let done = clears.advance_all(|folio| folio.is_pool_page_in(owner, range), || false);
            debug_assert_eq!(done, Ok(()), "it is not to stop");
        }
    }

    /// The same, with no page of a file in pieces either, for a verb that marks leaves or gives them to a
    /// handler.
    pub(in crate::vm) fn lock_whole(self, range: VirtRange) -> SpaceGuard<'a, P> {
        loop {
            let space = self.lock_complete(range);
            let Some(page) = FileFaults::of(self.0).page_in(&space, range) else { return space };
            drop(space);
            PoolClears::of(self.memory).complete_around(page);
        }
    }
}
