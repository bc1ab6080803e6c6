//! Folios of 1 GiB that are cleared piece by piece: whoever touches one waits for its own piece of 2 MiB, and the rest is
//! cleared by whoever is idle.
//!
//! The folio is held, and its pieces are mapped as they are ready, by leaves of 2 MiB. A piece is *claimed* by one CPU at a
//! time, by a bit, and nobody else clears or maps it. When all are done the hold ends, and where all of the folio is
//! mapped one leaf takes the place of the 512.
//!
//! A piece is as good as any fresh zeroed memory, so it goes where there is private anonymous memory and nothing mapped, and
//! nowhere else. What finds no place is free when the folio is split. Pieces whose place a program gives up, or its address space
//! with it, are *forgone*: nobody begins with them any more, so that no memory comes back by itself that was given up. Where
//! memory is short, or goes bad, all that is left of a folio is.
//!
//! One lock keeps all of it. It is taken inside an address space's, for some words at a time, and those of blocks inside it.
//! Whoever clears a piece holds a claim and no lock, or that of the address space for reading; who waits for a claim looks again
//! and calls [`Platform::relax`](crate::platform::FramePlatform::relax) in between.

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::addr::{Frame, FrameRange, Order, PageSize, VirtAddr, VirtRange};
use crate::clear::Extent;
use crate::error::Cancelled;
use crate::limits::{BLOCK_FRAMES, BLOCK_SIZE, FORMING_FOLIOS, FRAME_SIZE, TABLE_ENTRIES};
use crate::page_alloc::{self, Origin};
use crate::pgtable::PageTables;
use crate::platform::{Platform, TouchHint};
use crate::rank::Rank;
use crate::sync::{SpinGuard, SpinLock};
use crate::vm::fault::{Caller, fresh_flags};
use crate::vm::mapping::vma::Vma;
use crate::vm::space::body::{FoundBody, MmBody};
use crate::vm::space::mm::Mm;
use crate::vm::space::shared::{Memory, RECLAIM_FRAMES};
use crate::vm::userfault::UserfaultModes;

/// The folios that are being cleared, a few of all address spaces together.
pub(in crate::vm) struct Forming {
    /// How many there are; a hint.
    count: AtomicUsize,
    folios: SpinLock<Folios>,
}

type Folios = [Option<Folio>; FORMING_FOLIOS];

/// One of them.
struct Folio {
    /// The number and the family of the address space that it is for, and where it goes there.
    owner: u64,
    family: u64,
    base: VirtAddr,
    frame: Frame,
    claimed: Pieces,
    done: Pieces,
    /// What nobody wants any more: who gives such a claim back leaves it done.
    forgone: Pieces,
    /// The piece that was touched last.
    touched: usize,
}

/// A bit for each piece of 2 MiB.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Pieces([u64; TABLE_ENTRIES / 64]);

/// A piece that the caller alone clears and maps, and then says that it is done.
pub(in crate::vm) struct Piece {
    slot: usize,
    index: usize,
    owner: u64,
    family: u64,
    base: VirtAddr,
    folio: Frame,
}

/// What is known of the piece around an address.
pub(in crate::vm) enum Found {
    /// No folio is cleared for these addresses.
    Nothing,
    /// One is, but this piece was done already, and is not there any more.
    Done,
    /// Somebody is at it.
    Busy,
    /// It is the caller's.
    Claimed(Piece),
}

/// Why a folio does not begin to form.
pub(in crate::vm) enum NotBegun {
    /// Too many do: the folio is the caller's again.
    Full(page_alloc::Folio),
    /// Another one forms there since a moment ago, or memory of this one has just gone bad: it is free again.
    Again,
}

/// A folio all of whose pieces are done.
pub(in crate::vm) struct Formed {
    owner: u64,
    family: u64,
    pub(in crate::vm) base: VirtAddr,
    frame: Frame,
}

impl Pieces {
    const NONE: Self = Self([0; TABLE_ENTRIES / 64]);
    const ALL: Self = Self([u64::MAX; TABLE_ENTRIES / 64]);

    fn contains(&self, index: usize) -> bool {
        self.0[index / 64] >> (index % 64) & 1 == 1
    }

    fn insert(&mut self, index: usize) {
        self.0[index / 64] |= 1 << (index % 64);
    }

    fn remove(&mut self, index: usize) {
        self.0[index / 64] &= !(1 << (index % 64));
    }

    fn insert_all(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(word, more)| *word |= more);
    }

    fn without(self, other: Self) -> Self {
        Self(core::array::from_fn(|at| self.0[at] & !other.0[at]))
    }

    /// The first piece that is missing, in rising order from a multiple of 64 on and then from the start.
    fn first_missing_from(&self, start: usize) -> Option<usize> {
        let words = self.0.len();
        let word = (0..words).map(|at| (start / 64 + at) % words).find(|&at| self.0[at] != u64::MAX)?;
        Some(word * 64 + self.0[word].trailing_ones() as usize)
    }
}

impl Folio {
    /// The piece that an idle CPU had better clear: half of the folio away from the one that was touched last. Whoever touches
    /// one piece after another, in either direction, would wait for the neighbour that is just being cleared, and gains
    /// nothing.
    fn next_ahead(&self) -> Option<usize> {
        self.claimed.first_missing_from((self.touched + TABLE_ENTRIES / 2) % TABLE_ENTRIES)
    }

    fn claim(&mut self, slot: usize, index: usize) -> Piece {
        self.claimed.insert(index);
        let Self { owner, family, base, frame, .. } = *self;
        Piece { slot, index, owner, family, base, folio: frame }
    }

    /// The pieces that lie in a range of addresses as a whole.
    fn inside(&self, range: VirtRange) -> Pieces {
        let mut inside = Pieces::NONE;
        let place = |index: usize| VirtRange::from_len(self.base.add(index as u64 * BLOCK_SIZE), BLOCK_SIZE);
        (0..TABLE_ENTRIES).filter(|&index| range.covers(place(index))).for_each(|index| inside.insert(index));
        inside
    }

    /// Nobody begins with these any more. What is claimed is somebody's, who will find that it was the last.
    fn forgo(&mut self, pieces: Pieces) {
        self.forgone.insert_all(pieces);
        let more = pieces.without(self.claimed);
        self.claimed.insert_all(more);
        self.done.insert_all(more);
    }

    /// The folio, if it is done with.
    fn formed(&self) -> Option<Formed> {
        let Self { owner, family, base, frame, .. } = *self;
        (self.done == Pieces::ALL).then_some(Formed { owner, family, base, frame })
    }
}

impl Piece {
    /// Its frames.
    fn frames(&self) -> FrameRange {
        FrameRange::new(self.folio.add((self.index * BLOCK_FRAMES) as u64), BLOCK_FRAMES as u64)
    }

    /// Where it goes.
    fn addr(&self) -> VirtAddr {
        self.base.add(self.index as u64 * BLOCK_SIZE)
    }
}

impl Forming {
    pub(in crate::vm) fn new() -> Self {
        let folios = SpinLock::new(Rank::Forming, [const { None }; FORMING_FOLIOS]);
        Self { count: AtomicUsize::new(0), folios }
    }

    /// Whether there are any. A hint.
    #[inline]
    pub(in crate::vm) fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// Takes a folio out if it is done with.
    fn take_formed(&self, place: &mut Option<Folio>) -> Option<Formed> {
        let formed = place.as_ref()?.formed()?;
        *place = None;
        self.count.fetch_sub(1, Ordering::Relaxed);
        Some(formed)
    }
}

impl<P: Platform> Memory<'_, P> {
    /// Clears one piece of a folio of 1 GiB that somebody waits for, or may touch later: for a CPU that has nothing else to
    /// do. Whether there was one, and the running task is not to be killed. The caller holds no lock.
    pub fn clear_ahead(&self) -> bool {
        if !self.forming().any() {
            return false;
        }
        let Some(piece) = self.claim_ahead() else { return false };
        let cleared = self.clear_piece(&piece, None);
        if cleared.is_ok()
            && let Some(body) = self.find_body(piece.family, piece.owner)
        {
            let space = body.space.read(self.platform());
            let vma = space.tree.find(piece.addr());
            // Who gives addresses up holds the lock for writing.
            if let Some(vma) = vma.filter(|_| self.is_wanted(&piece)) {
                self.map_piece(&body, vma, &piece, Caller::Populate { bytes: PageSize::Size1G.bytes() });
            }
        }
        if let Some(formed) = self.end_piece(&piece, cleared.is_ok()) {
            self.end_forming(&formed);
        }
        cleared.is_ok()
    }

    fn lock_forming(&self) -> SpinGuard<'_, Folios, P> {
        self.forming().folios.lock(self.platform())
    }

    fn claim_ahead(&self) -> Option<Piece> {
        self.lock_forming().iter_mut().enumerate().find_map(|(slot, folio)| {
            let folio = folio.as_mut()?;
            Some(folio.claim(slot, folio.next_ahead()?))
        })
    }

    fn is_wanted(&self, piece: &Piece) -> bool {
        self.lock_forming()[piece.slot].as_ref().is_some_and(|folio| !folio.forgone.contains(piece.index))
    }

    fn find_body(&self, family: u64, number: u64) -> Option<FoundBody> {
        let kept = Origin::kept(family);
        FoundBody::next_of_family(self, kept, number - 1).filter(|body| body.mapper.number() == number)
    }

    /// Clears a piece, what is around a frame that is touched at once last.
    fn clear_piece(&self, piece: &Piece, touched: Option<Frame>) -> Result<(), Cancelled> {
        let hint = if touched.is_some() { TouchHint::Soon } else { TouchHint::Unknown };
        let extent = Extent::new(piece.frames(), hint).part_of(PageSize::Size1G.bytes());
        let extent = touched.map_or(extent, |frame| extent.near(frame));
        // SAFETY: invariant 1: the piece is claimed by this task, and no leaf maps it yet.
        unsafe { self.pages().clear_frames_in_stretches(&extent) }
    }

    /// Maps a piece that was cleared, if there is nothing where it goes and the mapping is what it was made for; whether it
    /// did. The address space's lock is held for reading.
    fn map_piece(&self, body: &MmBody, vma: &Vma, piece: &Piece, caller: Caller) -> bool {
        let (addr, frames) = (piece.addr(), piece.frames());
        let fits = vma.attributes.is_anonymous()
            && vma.attributes.is_private()
            && !vma.attributes.handler.catches(UserfaultModes::MISSING)
            && vma.range.covers(VirtRange::from_len(addr, BLOCK_SIZE))
            && self.pages().origin(frames.start).map(|origin| origin.addr())
                == Some(vma.attributes.origin_of(addr));
        let flags = fresh_flags(&vma.attributes, caller);
        let tables = PageTables::new(self.pages(), &body.context);
        let mapped = fits && tables.map_large(addr, frames.start, PageSize::Size2M, flags).is_ok();
        if mapped {
            body.add_anon(self.pages(), frames.count as i64);
        }
        mapped
    }

    /// Ends a claim; the folio if it was the last. What was not cleared is somebody else's to claim, if anybody wants it.
    fn end_piece(&self, piece: &Piece, cleared: bool) -> Option<Formed> {
        let mut folios = self.lock_forming();
        let place = &mut folios[piece.slot];
        let folio = place.as_mut()?;
        if cleared || folio.forgone.contains(piece.index) {
            folio.done.insert(piece.index);
        } else {
            folio.claimed.remove(piece.index);
        }
        self.forming().take_formed(place)
    }

    /// Nobody clears the folio any more: from here on it is its leaves' alone, and one leaf if all of it is mapped. The
    /// caller holds no lock.
    fn end_forming(&self, formed: &Formed) {
        // SAFETY: invariant 1: `begin_forming` held the folio, whose slot is empty by now.
        unsafe { self.pages().release(FrameRange::folio(formed.frame, Order::FRAME)) };
        let all = VirtRange::from_len(formed.base, PageSize::Size1G.bytes());
        let collapsed = self.find_body(formed.family, formed.owner).is_some_and(|body| {
            let space = body.space.write(self.platform());
            let one = space.tree.find(formed.base).is_some_and(|vma| vma.range.covers(all));
            one && PageTables::new(self.pages(), &body.context).collapse_gigantic(formed.base) == Ok(true)
        });
        if !collapsed {
            self.pages().defer_if_partly_mapped(formed.frame);
        }
    }

    /// An address space gives addresses up, or itself: nobody begins any more with the pieces that lie there.
    pub(in crate::vm) fn forgo(&self, owner: u64, range: VirtRange) {
        if self.forming().any() {
            self.forgo_pieces(|folio| if folio.owner == owner { folio.inside(range) } else { Pieces::NONE });
        }
    }

    /// Memory went bad in a folio: it is its leaves' alone as soon as may be.
    pub(in crate::vm) fn forgo_around(&self, frame: Frame) {
        if self.forming().any() {
            let around = |folio: &Folio| FrameRange::folio(folio.frame, Order::GIGANTIC).contains(frame);
            self.forgo_pieces(|folio| if around(folio) { Pieces::ALL } else { Pieces::NONE });
        }
    }

    /// Memory is short: what of the folios nobody has touched yet goes to others. How many frames became free.
    pub(in crate::vm) fn forgo_all(&self) -> u64 {
        if !self.forming().any() {
            return 0;
        }
        let freed = self.forgo_pieces(|_| Pieces::ALL);
        if freed == 0 { self.pages().split_deferred(RECLAIM_FRAMES) } else { freed }
    }

    /// Forgoes pieces of each folio, and lets go of those that are done with. How many frames became free by that alone.
    fn forgo_pieces(&self, chosen: impl Fn(&Folio) -> Pieces) -> u64 {
        let mut folios = self.lock_forming();
        let formed: [Option<Formed>; FORMING_FOLIOS] = core::array::from_fn(|slot| {
            let folio = folios[slot].as_mut()?;
            folio.forgo(chosen(folio));
            self.forming().take_formed(&mut folios[slot])
        });
        drop(folios);
        formed.iter().flatten().map(|formed| self.let_go(formed)).sum()
    }

    /// A folio that will never be one leaf is its leaves' alone from here on, and free if there are none.
    fn let_go(&self, formed: &Formed) -> u64 {
        // SAFETY: invariant 1: `begin_forming` held the folio, whose slot is empty by now.
        let freed = unsafe { self.pages().release(FrameRange::folio(formed.frame, Order::FRAME)) };
        if freed == 0 {
            self.pages().defer_if_partly_mapped(formed.frame);
        }
        freed
    }
}

impl<P: Platform> Mm<'_, P> {
    /// The piece around an address where nothing is mapped.
    pub(in crate::vm) fn find_piece(&self, addr: VirtAddr) -> Found {
        let owner = self.mapper.number();
        let (base, index) = place_of(addr);
        for (slot, folio) in self.memory.lock_forming().iter_mut().enumerate() {
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

    /// Begins to clear a folio of 1 GiB that was just allocated and goes around an address: the piece there is the caller's.
    ///
    /// # Errors
    /// [`NotBegun`].
    pub(in crate::vm) fn begin_forming(
        &self,
        vma: &Vma,
        fresh: page_alloc::Folio,
        addr: VirtAddr,
    ) -> Result<Piece, NotBegun> {
        let (pages, owner, family) = (self.memory.pages(), self.mapper.number(), self.family);
        let (base, index) = place_of(addr);
        let mut folios = self.memory.lock_forming();
        // Two who touch fresh memory at once have each allocated one.
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
        pages.hold(first);
        // Until it was held a frame of it that went bad was marked, for who maps it; from here on its failure says that it is busy.
        if pages.has_bad(frame) {
            drop(folios);
            // SAFETY: invariant 1: this task has just allocated and held the folio.
            unsafe { pages.release(first) };
            return Err(NotBegun::Again);
        }
        pages.set_origin(frame, Origin::new(family, vma.attributes.origin_of(base)));
        let [claimed, done, forgone] = [Pieces::NONE; 3];
        let mut folio = Folio { owner, family, base, frame, claimed, done, forgone, touched: index };
        let piece = folio.claim(slot, index);
        folios[slot] = Some(folio);
        self.memory.forming().count.fetch_add(1, Ordering::Relaxed);
        Ok(piece)
    }

    /// Clears and maps a piece, for an access to an address or to populate it; whether it could be mapped, and the folio if it was
    /// the last. The lock is held for reading.
    ///
    /// # Errors
    /// [`Cancelled`]: it is somebody else's to claim.
    pub(in crate::vm) fn form(
        &self,
        vma: &Vma,
        piece: &Piece,
        addr: VirtAddr,
        caller: Caller,
    ) -> Result<(bool, Option<Formed>), Cancelled> {
        let touched = piece.frames().start.add((addr.0 - piece.addr().0) / FRAME_SIZE);
        let cleared = self.memory.clear_piece(piece, (caller == Caller::Access).then_some(touched));
        let mapped = cleared.is_ok() && self.memory.map_piece(self.body(), vma, piece, caller);
        let formed = self.memory.end_piece(piece, cleared.is_ok());
        if cleared.is_err() {
            formed.iter().for_each(|formed| _ = self.memory.let_go(formed));
        }
        cleared.map(|()| (mapped, formed))
    }

    /// As [`Memory::end_forming`].
    pub(in crate::vm) fn end_forming(&self, formed: &Formed) {
        self.memory.end_forming(formed);
    }
}

/// Where a folio of 1 GiB around an address begins, and which of its pieces the address is in.
fn place_of(addr: VirtAddr) -> (VirtAddr, usize) {
    let base = addr.align_down(PageSize::Size1G.bytes());
    (base, ((addr.0 - base.0) / BLOCK_SIZE) as usize)
}
