//! Folios of 1 GiB that are cleared piece by piece: a task that touches one waits for its own piece of 2 MiB,
//! and idle CPUs clear the rest.
//!
//! The folio is held, and its pieces are mapped as they are ready, by leaves of 2 MiB. A piece is *claimed*
//! by one CPU at a time, by a bit, and no other clears or maps it. When all are done the hold ends, and where
//! all of the folio is mapped one leaf takes the place of the 512.
//!
//! A piece is as good as any fresh zeroed memory, so it goes where there is private anonymous memory and
//! nothing mapped, and nowhere else. What finds no place is free when the folio is split. Pieces whose place
//! a program gives up, or its address space with it, are *cancelled*: no CPU begins with them any more, so
//! that no memory comes back by itself that was given up. Where memory is short, or goes bad, all that is
//! left of a folio is.
//!
//! One lock keeps all of it. It is taken inside an address space's, for some words at a time, and those of
//! blocks inside it. A CPU that clears a piece holds a claim and no lock, or that of the address space for
//! reading; one that waits for a claim looks again and calls
//! [`Platform::relax`](crate::platform::FramePlatform::relax) in between.

use core::sync::atomic::Ordering;

use crate::addr::{Frame, FrameRange, Order, PageSize, VirtAddr, VirtRange};
use crate::clear::Extent;
use crate::error::Cancelled;
use crate::limits::{BLOCK_SIZE, FRAME_SIZE};
use crate::page_alloc::{self, Origin};
use crate::pgtable::PageTables;
use crate::platform::{Platform, TouchHint};
use crate::vm::fault::flags::fresh_flags;
use crate::vm::fault::step::Caller;
use crate::vm::gigantic::cancel::Cancellation;
use crate::vm::gigantic::state::{Cleared, Folio, Found, NotBegun, Piece, Pieces};
use crate::vm::handle::handle;
use crate::vm::mapping::vma::Vma;
use crate::vm::space::address_space::AddressSpace;
use crate::vm::space::body::MmBody;
use crate::vm::space::found::FoundBody;
use crate::vm::space::shared::MmShared;
use crate::vm::userfault::UserfaultModes;

handle! {
    /// Clears pieces of folios of 1 GiB.
    GiganticClearing of MmShared
}

impl<P: Platform> GiganticClearing<'_, '_, P> {
    /// Clears one piece of a folio of 1 GiB that a task waits for, or may touch later: for a CPU that has
    /// nothing else to do. Whether there was one, and the running task is not to be killed. The caller holds
    /// no lock.
    pub(crate) fn clear_ahead(self) -> bool {
        if !self.gigantic_clears().any() {
            return false;
        }
        let Some(piece) = self.claim_ahead() else { return false };
        let cleared = self.clear_piece(&piece, None);
        if cleared.is_ok()
            && let Some(body) = self.find_body(piece.family, piece.owner)
        {
            let space = body.space.read(self.platform());
            let vma = space.tree.find(piece.addr());
            // A verb that gives addresses up holds the lock for writing.
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
            let folio = folio.as_mut()?;
            Some(folio.claim(slot, folio.next_ahead()?))
        })
    }

    fn is_wanted(self, piece: &Piece) -> bool {
        self.gigantic_clears().lock(self.platform())[piece.slot]
            .as_ref()
            .is_some_and(|folio| !folio.cancelled.contains(piece.index))
    }

    fn find_body(self, family: u64, number: u64) -> Option<FoundBody> {
        let kept = Origin::kept(family);
        FoundBody::next_of_family(self.0, kept, number - 1).filter(|body| body.mapper.number() == number)
    }

    /// Clears a piece, what is around a frame that is touched at once last.
    fn clear_piece(self, piece: &Piece, touched: Option<Frame>) -> Result<(), Cancelled> {
        let hint = if touched.is_some() { TouchHint::Soon } else { TouchHint::Unknown };
        let extent = Extent::new(piece.frames(), hint).part_of(PageSize::Size1G.bytes());
        let extent = touched.map_or(extent, |frame| extent.near(frame));
        // SAFETY: invariant 1: the piece is claimed by this task, and no leaf maps it yet.
        unsafe { self.pages().frames().clear_frames_in_stretches(&extent) }
    }

    /// Maps a piece that was cleared, if there is nothing where it goes and the mapping is what it was made
    /// for; whether it did. The address space's lock is held for reading.
    fn map_piece(self, body: &MmBody, vma: &Vma, piece: &Piece, caller: Caller) -> bool {
        let (addr, frames) = (piece.addr(), piece.frames());
        let fits = vma.attributes.is_anonymous()
            && vma.attributes.is_private()
            && !vma.attributes.handler.catches(UserfaultModes::MISSING)
            && vma.range.covers(VirtRange::from_len(addr, BLOCK_SIZE))
            && self.pages().frames().origin(frames.start).map(|origin| origin.addr())
                == Some(vma.attributes.origin_of(addr));
        let flags = fresh_flags(&vma.attributes, caller);
        let tables = PageTables::new(self.pages(), &body.context);
        // SAFETY: invariant 1: the folio is held while pieces of it are mapped.
        let mapped = fits && unsafe { tables.map_large(addr, frames.start, PageSize::Size2M, flags) }.is_ok();
        if mapped {
            body.add_anon(self.pages(), frames.count as i64);
        }
        mapped
    }

    /// Ends a claim; the folio if it was the last. What was not cleared can be claimed again, if it is wanted.
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

    /// No CPU clears the folio any more: from here on it is its leaves' alone, and one leaf if all of it is
    /// mapped. The caller holds no lock.
    pub(in crate::vm) fn end_clear(self, cleared: &Cleared) {
        // SAFETY: invariant 1: `begin_clear` held the folio, whose slot is empty by now.
        unsafe { self.pages().counts().release(FrameRange::folio(cleared.frame, Order::FRAME)) };
        let all = VirtRange::from_len(cleared.base, PageSize::Size1G.bytes());
        let collapsed = self.find_body(cleared.family, cleared.owner).is_some_and(|body| {
            let space = body.space.write(self.platform());
            let one = space.tree.find(cleared.base).is_some_and(|vma| vma.range.covers(all));
            one && PageTables::new(self.pages(), &body.context).collapse_gigantic(cleared.base) == Ok(true)
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
    /// The piece around an address where nothing is mapped.
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

    /// Begins to clear a folio of 1 GiB that was just allocated and goes around an address: the piece there
    /// is the caller's.
    ///
    /// # Errors
    /// [`NotBegun`].
    pub(in crate::vm) fn begin_clear(
        self,
        vma: &Vma,
        fresh: page_alloc::Folio,
        addr: VirtAddr,
    ) -> Result<Piece, NotBegun> {
        let (pages, owner, family) = (self.memory.pages(), self.mapper.number(), self.family);
        let (base, index) = place_of(addr);
        let mut folios = self.memory.gigantic_clears().lock(self.memory.platform());
        // Two tasks that touch fresh memory at once have each allocated one.
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
        // Until the folio was held, a frame of it that went bad was marked for its mappers; from here on its
        // failure says busy.
        if pages.frames().has_bad(frame) {
            drop(folios);
            // SAFETY: invariant 1: this task has just allocated and held the folio.
            unsafe { pages.counts().release(first) };
            return Err(NotBegun::Again);
        }
        pages.frames().set_origin(frame, Origin::new(family, vma.attributes.origin_of(base)));
        let [claimed, done, cancelled] = [Pieces::NONE; 3];
        let mut folio = Folio { owner, family, base, frame, claimed, done, cancelled, touched: index };
        let piece = folio.claim(slot, index);
        folios[slot] = Some(folio);
        self.memory.gigantic_clears().count.fetch_add(1, Ordering::Relaxed);
        Ok(piece)
    }

    /// Clears and maps a piece, for an access to an address or to populate it; whether it could be mapped,
    /// and the folio if it was the last. The lock is held for reading.
    ///
    /// # Errors
    /// [`Cancelled`]: another task may claim it.
    pub(in crate::vm) fn clear_and_map(
        self,
        vma: &Vma,
        piece: &Piece,
        addr: VirtAddr,
        caller: Caller,
    ) -> Result<(bool, Option<Cleared>), Cancelled> {
        let touched = piece.frames().start.add((addr.0 - piece.addr().0) / FRAME_SIZE);
        let cleared = GiganticClearing::of(self.memory)
            .clear_piece(piece, (caller == Caller::Access).then_some(touched));
        let mapped =
            cleared.is_ok() && GiganticClearing::of(self.memory).map_piece(self.body(), vma, piece, caller);
        let last = GiganticClearing::of(self.memory).end_piece(piece, cleared.is_ok());
        if cleared.is_err() {
            last.iter().for_each(|folio| _ = Cancellation::of(self.memory).detach(folio));
        }
        cleared.map(|()| (mapped, last))
    }
}

/// Where a folio of 1 GiB around an address begins, and which of its pieces the address is in.
fn place_of(addr: VirtAddr) -> (VirtAddr, usize) {
    let base = addr.align_down(PageSize::Size1G.bytes());
    (base, ((addr.0 - base.0) / BLOCK_SIZE) as usize)
}
