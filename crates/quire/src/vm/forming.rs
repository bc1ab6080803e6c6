//! Folios of 1 GiB that are cleared piece by piece: whoever touches one waits for its own piece of 2 MiB, and the rest is
//! cleared by whoever is idle.
//!
//! The folio is held, and its pieces are mapped as they are ready, by leaves of 2 MiB. A piece is *claimed* by one CPU at a
//! time, by a bit, and nobody else clears or maps it. When all are done the hold ends, and where all of the folio is
//! mapped one leaf takes the place of the 512.
//!
//! Nothing has to be called off when mappings change meanwhile: a piece is as good as any fresh zeroed memory, so it goes
//! where there is private anonymous memory and nothing mapped, and nowhere else. What finds no place is free when the
//! folio is split.
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicUsize, Ordering};

use super::body::{FoundBody, MmBody};
use super::fault::leaf_flags;
use super::memory::Memory;
use super::mm::Mm;
use super::userfault::UserfaultModes;
use super::vma::Vma;
use crate::addr::{Frame, FrameRange, Order, PageSize, VirtAddr, VirtRange};
use crate::arch::EntryFlags;
use crate::clear::Extent;
use crate::limits::{BLOCK_FRAMES, BLOCK_SIZE, FORMING_FOLIOS, TABLE_ENTRIES};
use crate::page_alloc::Origin;
use crate::pgtable::PageTables;
use crate::platform::{Platform, TouchHint};
use crate::rank::Rank;
use crate::sync::{SpinGuard, SpinLock};

/// The folios that are being cleared, a few of all address spaces together.
pub(super) struct Forming {
    /// How many there are; a hint.
    count: AtomicUsize,
    folios: [SpinLock<Option<Folio>>; FORMING_FOLIOS],
}

/// One of them.
struct Folio {
    /// The number and the family of the address space that it is for, and where it goes there.
    owner: u64,
    family: u64,
    base: VirtAddr,
    frame: Frame,
    claimed: Pieces,
    done: Pieces,
    /// The piece that was touched last.
    touched: usize,
}

/// A bit for each piece of 2 MiB.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Pieces([u64; TABLE_ENTRIES / 64]);

/// A piece that the caller alone clears and maps, and then says that it is done.
pub(super) struct Piece {
    slot: usize,
    index: usize,
    owner: u64,
    family: u64,
    base: VirtAddr,
    folio: Frame,
}

/// What is known of the piece around an address.
pub(super) enum Found {
    /// There is none, or it was done already.
    Nothing,
    /// Somebody is at it.
    Busy,
    /// It is the caller's.
    Claimed(Piece),
}

/// A folio all of whose pieces are done.
pub(super) struct Formed {
    owner: u64,
    family: u64,
    pub(super) base: VirtAddr,
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
    pub(super) fn new() -> Self {
        let folios = core::array::from_fn(|_| SpinLock::new(Rank::Forming, None));
        Self { count: AtomicUsize::new(0), folios }
    }

    /// Whether there are any. A hint.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    fn each<'a, P: Platform>(
        &'a self,
        platform: &'a P,
    ) -> impl Iterator<Item = (usize, SpinGuard<'a, Option<Folio>, P>)> {
        self.folios.iter().map(move |folio| folio.lock(platform)).enumerate()
    }
}

impl<P: Platform> Memory<'_, P> {
    /// Clears one piece of a folio of 1 GiB that somebody waits for, or may touch later: for a CPU that has nothing else to
    /// do. Whether there was one. The caller holds no lock.
    pub fn clear_ahead(&self) -> bool {
        if !self.forming().any() {
            return false;
        }
        let unclaimed = |folio: &Option<Folio>| folio.as_ref().and_then(Folio::next_ahead);
        let claimed = self.forming().each(self.platform()).find_map(|(slot, mut folio)| {
            let index = unclaimed(&folio)?;
            folio.as_mut().map(|folio| folio.claim(slot, index))
        });
        let Some(piece) = claimed else { return false };
        self.clear_piece(&piece);
        if let Some(body) = self.find_body(piece.family, piece.owner) {
            let space = body.space.read(self.platform());
            if let Some(vma) = space.tree.find(piece.addr()) {
                self.map_piece(&body, vma, &piece);
            }
        }
        if let Some(formed) = self.finish_piece(&piece) {
            self.end_forming(&formed);
        }
        true
    }

    fn find_body(&self, family: u64, number: u64) -> Option<FoundBody> {
        let kept = Origin::kept(family);
        FoundBody::next_of_family(self, kept, number - 1).filter(|body| body.mapper.number() == number)
    }

    fn clear_piece(&self, piece: &Piece) {
        let extent = Extent::new(piece.frames(), TouchHint::Unknown).part_of(PageSize::Size1G.bytes());
        let done = self.pages().clearer().clear_extent(self.platform(), &extent, || false);
        debug_assert_eq!(done, Ok(()), "nobody cancels it");
    }

    /// Maps a piece that was cleared, if there is nothing where it goes and the mapping is what it was made for; whether it
    /// did. The address space's lock is held for reading.
    fn map_piece(&self, body: &MmBody, vma: &Vma, piece: &Piece) -> bool {
        let (addr, frames) = (piece.addr(), piece.frames());
        let fits = vma.attributes.is_anonymous()
            && vma.attributes.is_private()
            && !vma.attributes.handler.catches(UserfaultModes::MISSING)
            && vma.range.covers(VirtRange::from_len(addr, BLOCK_SIZE))
            && self.pages().origin(frames.start).map(|origin| origin.addr())
                == Some(vma.attributes.origin_of(addr));
        let flags = leaf_flags(&vma.attributes, true).union(EntryFlags::ANON);
        let tables = PageTables::new(self.pages(), &body.context);
        let mapped = fits && tables.map_large(addr, frames.start, PageSize::Size2M, flags).is_ok();
        if mapped {
            body.add_anon(self.pages(), frames.count as i64);
        }
        mapped
    }

    /// Says that a piece was cleared, and mapped if that was possible; the folio if it was the last.
    fn finish_piece(&self, piece: &Piece) -> Option<Formed> {
        let mut folio = self.forming().folios[piece.slot].lock(self.platform());
        folio.as_mut()?.done.insert(piece.index);
        let formed = folio.as_ref()?.formed();
        if formed.is_some() {
            *folio = None;
            self.forming().count.fetch_sub(1, Ordering::Relaxed);
        }
        formed
    }

    /// Nobody clears the folio any more: from here on it is its leaves' alone, and one leaf if all of it is mapped. The
    /// caller holds no lock.
    fn end_forming(&self, formed: &Formed) {
        self.pages().release(FrameRange::folio(formed.frame, Order::FRAME));
        let Some(body) = self.find_body(formed.family, formed.owner) else { return };
        let space = body.space.write(self.platform());
        let all = VirtRange::from_len(formed.base, PageSize::Size1G.bytes());
        let one = space.tree.find(formed.base).is_some_and(|vma| vma.range.covers(all));
        let tables = PageTables::new(self.pages(), &body.context);
        let collapsed = one && tables.collapse_gigantic(formed.base) == Ok(true);
        drop(space);
        if !collapsed {
            self.pages().defer_if_partly_mapped(formed.frame);
        }
    }

    /// An address space ends: nobody clears ahead for it any more.
    pub(super) fn stop_forming(&self, owner: u64) {
        if !self.forming().any() {
            return;
        }
        for slot in 0..FORMING_FOLIOS {
            let mut folio = self.forming().folios[slot].lock(self.platform());
            let Some(own) = folio.as_mut().filter(|folio| folio.owner == owner) else { continue };
            // What is claimed and not done is somebody's, who will find nobody to map it for, and that it was the last.
            let unclaimed = own.claimed.0.map(|claimed| !claimed);
            own.done.0.iter_mut().zip(unclaimed).for_each(|(done, more)| *done |= more);
            own.claimed = Pieces::ALL;
            let formed = own.formed();
            if formed.is_some() {
                *folio = None;
                self.forming().count.fetch_sub(1, Ordering::Relaxed);
            }
            drop(folio);
            if let Some(formed) = formed {
                self.pages().release(FrameRange::folio(formed.frame, Order::FRAME));
            }
        }
    }
}

impl<P: Platform> Mm<'_, P> {
    /// The piece around an address where nothing is mapped.
    pub(super) fn find_piece(&self, addr: VirtAddr) -> Found {
        let (platform, owner) = (self.memory.platform(), self.mapper.number());
        let base = addr.align_down(PageSize::Size1G.bytes());
        let index = ((addr.0 - base.0) / BLOCK_SIZE) as usize;
        for (slot, mut folio) in self.memory.forming().each(platform) {
            let Some(own) = folio.as_mut().filter(|folio| (folio.owner, folio.base) == (owner, base)) else {
                continue;
            };
            return match (own.claimed.contains(index), own.done.contains(index)) {
                (_, true) => Found::Nothing,
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
    /// `None` when too many are being cleared already.
    pub(super) fn begin_forming(&self, vma: &Vma, frame: Frame, addr: VirtAddr) -> Option<Piece> {
        let base = addr.align_down(PageSize::Size1G.bytes());
        let index = ((addr.0 - base.0) / BLOCK_SIZE) as usize;
        let (slot, mut place) =
            self.memory.forming().each(self.memory.platform()).find(|(_, folio)| folio.is_none())?;
        let pages = self.memory.pages();
        pages.hold(FrameRange::folio(frame, Order::FRAME));
        pages.set_origin(frame, Origin::new(self.family, vma.attributes.origin_of(base)));
        let (owner, family) = (self.mapper.number(), self.family);
        let mut folio =
            Folio { owner, family, base, frame, claimed: Pieces::NONE, done: Pieces::NONE, touched: index };
        let piece = folio.claim(slot, index);
        *place = Some(folio);
        self.memory.forming().count.fetch_add(1, Ordering::Relaxed);
        Some(piece)
    }

    /// Clears and maps a piece; whether it could be mapped, and the folio if it was the last. The lock is held for reading.
    pub(super) fn form(&self, vma: &Vma, piece: &Piece) -> (bool, Option<Formed>) {
        self.memory.clear_piece(piece);
        let mapped = self.memory.map_piece(self.body(), vma, piece);
        (mapped, self.memory.finish_piece(piece))
    }

    /// As [`Memory::end_forming`].
    pub(super) fn end_forming(&self, formed: &Formed) {
        self.memory.end_forming(formed);
    }
}
