//! Folios of 1 GiB that are cleared piece by piece: a task that touches one waits for its own piece of 2 MiB,
//! and idle CPUs clear the rest.
//!
//! The folio is held, and each piece is mapped by a leaf of 2 MiB once it is clear. A CPU *claims* a piece by
//! a bit; no other CPU clears or maps it meanwhile. When all pieces are done the hold ends, and one leaf
//! replaces the 512 if all of them are mapped.
//!
//! A piece is like any fresh zeroed memory: it is mapped only into private anonymous memory, where nothing is
//! mapped. A piece that finds no such place is freed when the folio is split. When a program or its exit
//! gives addresses up, their pieces are *cancelled*: no CPU starts on them, so no memory appears where the
//! program has just freed it. When memory is short or goes bad, all pieces that are left are cancelled.
//!
//! One lock guards all of this. It is taken inside the lock of an address space, for a few words, and locks
//! of blocks inside it. A CPU that clears a piece holds its claim and no lock, or the lock of the address
//! space for reading. A CPU that waits for a claim polls, with
//! [`Platform::relax`](crate::platform::FramePlatform::relax) in between.

use crate::addr::{Frame, FrameRange, Order, PageSize, VirtAddr, VirtRange};
use crate::clear::Extent;
use crate::error::Cancelled;
use crate::limits::{BLOCK_SIZE, FRAME_SIZE};
use crate::page_alloc::{self, Origin};
use crate::platform::{Platform, TouchHint};
use crate::vm::fault::flags::fresh_flags;
use crate::vm::fault::step::Caller;
use crate::vm::gigantic::cancel::Cancellation;
use crate::vm::gigantic::pool::PoolClears;
use crate::vm::gigantic::state::{Cleared, Folio, Found, NotBegun, Piece, Pieces, Source};
use crate::vm::handle::handle;
use crate::vm::mapping::vma::Vma;
use crate::vm::space::address_space::AddressSpace;
use crate::vm::space::body::MmBody;
use crate::vm::space::found::FoundBody;
use crate::vm::space::shared::MmShared;
use crate::vm::userfault::UserfaultModes;

handle! { GiganticClearing of MmShared }

impl<P: Platform> GiganticClearing<'_, '_, P> {
    /// Clears one piece that a task may touch later, on an idle CPU. Returns whether there was one and the
    /// running task is not to be killed. The caller holds no lock.
    pub(crate) fn clear_ahead(self) -> bool {
        if !self.gigantic_clears().any() {
            return false;
        }
        let Some(piece) = self.claim_ahead() else { return PoolClears::of(self.0).clear_ahead() };
        let cleared = self.clear_piece(&piece, None);
        if cleared.is_ok()
            && let Some(body) = self.find_body(piece.family, piece.owner)
        {
            let space = body.space.read(self.platform());
            let vma = space.tree.find(piece.addr());
            // Verbs that give addresses up hold the lock for writing, so none runs between check and map.
            if let Some(vma) = vma.filter(|_| self.is_wanted(&piece)) {
                self.map_piece(&body, vma, &piece, Caller::Populate { bytes: PageSize::Size1G.bytes() });
            }
        }
        if let Some(cleared) = self.end_piece(&piece, cleared.is_ok()) {
            self.end_clear(&cleared);
        }
        cleared.is_ok()
    }

    fn claim_ahead(self) -> Option<Piece> {
        self.gigantic_clears().lock(self.platform()).iter_mut().enumerate().find_map(|(slot, folio)| {
            let folio = folio.as_mut().filter(|folio| !folio.is_hugetlb())?;
            Some(folio.claim(slot, folio.next_ahead()?))
        })
    }

    fn is_wanted(self, piece: &Piece) -> bool {
        self.gigantic_clears().lock(self.platform())[piece.slot]
            .as_ref()
            .is_some_and(|folio| !folio.cancelled.contains(piece.index))
    }

    pub(super) fn find_body(self, family: u64, number: u64) -> Option<FoundBody> {
        let kept = Origin::kept(family);
        FoundBody::next_of_family(self.0, kept, number - 1).filter(|body| body.mapper.number() == number)
    }

    /// Clears a piece; the surroundings of a frame that is touched at once come last.
    fn clear_piece(self, piece: &Piece, touched: Option<Frame>) -> Result<(), Cancelled> {
        if piece.zero {
            self.pages().store().known(piece.frames().start, Order::BLOCK);
            return Ok(());
        }
        let hint = if touched.is_some() { TouchHint::Soon } else { TouchHint::Unknown };
        let extent = Extent::new(piece.frames(), hint).part_of(PageSize::Size1G.bytes());
        let extent = touched.map_or(extent, |frame| extent.near(frame));
        // SAFETY: invariant 1: the piece is claimed by this task, and no leaf maps it yet.
        unsafe { self.pages().frames().clear_frames_in_stretches(&extent) }
    }

    /// Maps a cleared piece if nothing is mapped there and the mapping is still the one it was made for.
    /// Returns whether it did. The address space's lock is held for reading.
    fn map_piece(self, body: &MmBody, vma: &Vma, piece: &Piece, caller: Caller) -> bool {
        let (addr, frames) = (piece.addr(), piece.frames());
        let fits = vma.attributes.is_anonymous()
            && vma.attributes.is_private()
            && !vma.attributes.handler.catches(UserfaultModes::MISSING)
            && vma.range.covers(VirtRange::from_len(addr, BLOCK_SIZE))
            && self.pages().frames().origin(frames.start).map(|origin| origin.addr())
                == Some(vma.attributes.origin_of(addr));
        let flags = fresh_flags(&vma.attributes, caller);
        let tables = body.tables(self.pages());
        // SAFETY: invariant 1: the folio is held while pieces of it are mapped.
        let mapped = fits && unsafe { tables.map_large(addr, frames.start, PageSize::Size2M, flags) }.is_ok();
        if mapped {
            body.add_anon(self.pages(), frames.count as i64);
        }
        mapped
    }

    /// Ends a claim, and returns the folio if no piece is left. A piece that was not cleared can be claimed
    /// again, unless it was cancelled.
    fn end_piece(self, piece: &Piece, cleared: bool) -> Option<Cleared> {
        let mut folios = self.gigantic_clears().lock(self.platform());
        let place = &mut folios[piece.slot];
        let folio = place.as_mut()?;
        if cleared || folio.cancelled.contains(piece.index) {
            folio.done.insert(piece.index);
        } else {
            folio.claimed.remove(piece.index);
        }
        self.gigantic_clears().take_cleared(place)
    }

    /// Ends the hold on a folio that is done: its leaves own it, or one leaf if all of it is mapped. The
    /// caller holds no lock.
    pub(in crate::vm) fn end_clear(self, cleared: &Cleared) {
        // SAFETY: invariant 1: `begin_clear` held the folio, whose slot is empty by now.
        unsafe { self.pages().counts().release(FrameRange::folio(cleared.frame, Order::FRAME)) };
        let all = VirtRange::from_len(cleared.base, PageSize::Size1G.bytes());
        let collapsed = self.find_body(cleared.family, cleared.owner).is_some_and(|body| {
            let space = body.space.write(self.platform());
            let one = space.tree.find(cleared.base).is_some_and(|vma| vma.range.covers(all));
            one && body.tables(self.pages()).collapse_gigantic(cleared.base) == Ok(true)
        });
        if !collapsed {
            self.pages().counts().defer_if_partly_mapped(cleared.frame);
        }
    }
}

handle! {
    /// Faults and populating where a folio of 1 GiB is cleared piece by piece.
    PieceFaults of AddressSpace
}

impl<P: Platform> PieceFaults<'_, '_, P> {
    /// Claims the piece around an address, if its folio is being cleared. Nothing is mapped at the address.
    pub(in crate::vm) fn find_piece(self, addr: VirtAddr) -> Found {
        let owner = self.mapper.number();
        let (base, index) = place_of(addr);
        for (slot, folio) in self.memory.gigantic_clears().lock(self.memory.platform()).iter_mut().enumerate()
        {
            let Some(own) = folio.as_mut().filter(|folio| (folio.owner, folio.base) == (owner, base)) else {
                continue;
            };
            return match (own.claimed.contains(index), own.done.contains(index)) {
                (_, true) => Found::Done,
                (true, false) => Found::Busy,
                (false, false) => {
                    own.touched = index;
                    Found::Claimed(own.claim(slot, index))
                }
            };
        }
        Found::Nothing
    }

    /// Begins to clear a folio of 1 GiB that was just allocated for the surroundings of an address, and
    /// claims the piece at the address.
    pub(in crate::vm) fn begin_clear(
        self,
        vma: &Vma,
        fresh: page_alloc::Folio,
        addr: VirtAddr,
    ) -> Result<Piece, NotBegun> {
        let (pages, owner, family) = (self.memory.pages(), self.mapper.number(), self.family);
        let (base, index) = place_of(addr);
        let mut zero = Pieces::NONE;
        pages.store().zero_blocks(fresh.frame(), Order::GIGANTIC, |at| zero.insert(at as usize));
        let mut folios = self.memory.gigantic_clears().lock(self.memory.platform());
        // Two tasks that touch fresh memory at once each allocate a folio.
        if folios.iter().flatten().any(|folio| (folio.owner, folio.base) == (owner, base)) {
            drop(folios);
            self.memory.give_up(fresh);
            return Err(NotBegun::Again);
        }
        let Some(slot) = folios.iter().position(Option::is_none) else {
            return Err(NotBegun::Full(fresh));
        };
        let frame = fresh.into_raw();
        let first = FrameRange::folio(frame, Order::FRAME);
        pages.frames().hold(first);
        // A frame that went bad before the hold was only marked; a failure from here on reports busy.
        if pages.frames().has_bad(frame) {
            drop(folios);
            // SAFETY: invariant 1: this task has just allocated and held the folio.
            unsafe { pages.counts().release(first) };
            return Err(NotBegun::Again);
        }
        pages.frames().set_whole_origin(frame, Origin::new(family, vma.attributes.origin_of(base)));
        let mut folio = Folio::new((owner, family), base, frame, Source::Allocated);
        (folio.touched, folio.zero) = (index, zero);
        let piece = folio.claim(slot, index);
        self.memory.gigantic_clears().put(&mut folios, slot, folio);
        Ok(piece)
    }

    /// Clears and maps a claimed piece. Returns whether it could be mapped, and the folio if no piece is
    /// left. The address space's lock is held for reading.
    ///
    /// # Errors
    /// [`Cancelled`]: another task may claim the piece.
    pub(in crate::vm) fn clear_and_map(
        self,
        vma: &Vma,
        piece: &Piece,
        addr: VirtAddr,
        caller: Caller,
    ) -> Result<(bool, Option<Cleared>), Cancelled> {
        let clearing = GiganticClearing::of(self.memory);
        let touched = piece.frames().start.add((addr.0 - piece.addr().0) / FRAME_SIZE);
        let cleared = clearing.clear_piece(piece, (caller == Caller::Access).then_some(touched));
        let mapped = cleared.is_ok() && clearing.map_piece(self.body(), vma, piece, caller);
        let last = clearing.end_piece(piece, cleared.is_ok());
        if cleared.is_err() {
            last.iter().for_each(|folio| _ = Cancellation::of(self.memory).detach(folio));
        }
        cleared.map(|()| (mapped, last))
    }
}

/// Where a folio of 1 GiB around an address begins, and the index of the address's piece.
pub(super) fn place_of(addr: VirtAddr) -> (VirtAddr, usize) {
    let base = addr.align_down(PageSize::Size1G.bytes());
    (base, ((addr.0 - base.0) / BLOCK_SIZE) as usize)
}
