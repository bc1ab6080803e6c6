//! Which folios of 1 GiB are being cleared, and how far each is.
#![forbid(unsafe_code)]

use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::addr::{Frame, FrameRange, Order, PageSize, VirtAddr, VirtRange};
use crate::error::InitError;
use crate::filemap::FileNode;
use crate::limits::{BLOCK_FRAMES, BLOCK_SIZE, GIGANTIC_CLEARS, TABLE_ENTRIES};
use crate::memmap::BootTable;
use crate::page_alloc::{self, PageAllocator, TableFrames};
use crate::platform::Platform;
use crate::rank::Rank;
use crate::sync::{SpinGuard, SpinLock};

/// The folios that are being cleared, for all address spaces together.
pub(in crate::vm) struct GiganticClears {
    /// How many folios there are; a hint.
    count: AtomicUsize,
    folios: SpinLock<Folios>,
}

pub(super) type Folios = BootTable<Option<Folio>>;

/// The owner of a page of a file: no address space.
pub(super) const NO_OWNER: u64 = 0;

#[derive(Clone, Copy)]
pub(super) struct Folio {
    /// The number and the family of the address space that it is for, and its address there. Of a page of a
    /// file there is [`NO_OWNER`].
    pub(super) owner: u64,
    pub(super) family: u64,
    pub(super) base: VirtAddr,
    pub(super) frame: Frame,
    pub(super) claimed: Pieces,
    pub(super) done: Pieces,
    /// Pieces that must not be started. When a claim on one is given back, the piece counts as done.
    pub(super) cancelled: Pieces,
    /// Pieces that were known to be zero when the folio was allocated; of a page of a file, those that idle CPUs found to
    /// be zero, which need not look again.
    pub(super) zero: Pieces,
    /// The piece that was touched last.
    pub(super) touched: usize,
    pub(super) source: Source,
}

/// Where the memory comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// The folio was allocated. See [`crate::vm::gigantic::clear`].
    Allocated,
    /// It is a page of a pool. See [`crate::vm::gigantic::pool`].
    Pool {
        /// It has used up a reservation of its mapping.
        reserved: bool,
    },
    /// It is a page of a file of huge pages, which any number of address spaces may map. See
    /// [`crate::vm::gigantic::file`].
    File {
        /// The file's number.
        number: u64,
        /// The page's number in it.
        index: u64,
    },
}

/// A bit for each piece of 2 MiB.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Pieces(pub(super) [u64; TABLE_ENTRIES / 64]);

/// A claimed piece: its holder alone clears and maps it, and then ends the claim.
pub(in crate::vm) struct Piece {
    pub(super) slot: usize,
    pub(super) index: usize,
    pub(super) owner: u64,
    pub(super) family: u64,
    pub(super) base: VirtAddr,
    pub(super) folio: Frame,
    /// It was known to be zero when its folio was allocated.
    pub(super) zero: bool,
}

/// The state of the piece around an address.
pub(in crate::vm) enum Found {
    /// No folio is cleared for these addresses.
    Nothing,
    /// This piece was done already and is not mapped any more.
    Done,
    /// Another task clears it.
    Busy,
    /// The caller has claimed it.
    Claimed(Piece),
}

/// Why clearing a folio did not begin.
pub(in crate::vm) enum NotBegun {
    /// Too many are being cleared: the caller gets the folio back.
    Full(page_alloc::Folio),
    /// Another task began there first, or memory of this folio has just gone bad. The folio was freed.
    Again,
}

/// A folio all of whose pieces are done.
pub(in crate::vm) struct Cleared {
    pub(super) owner: u64,
    pub(super) family: u64,
    pub(in crate::vm) base: VirtAddr,
    pub(super) frame: Frame,
}

impl Pieces {
    pub(super) const NONE: Self = Self([0; TABLE_ENTRIES / 64]);
    pub(super) const ALL: Self = Self([u64::MAX; TABLE_ENTRIES / 64]);

    pub(super) fn contains(&self, index: usize) -> bool {
        self.0[index / 64] >> (index % 64) & 1 == 1
    }

    pub(super) fn insert(&mut self, index: usize) {
        self.0[index / 64] |= 1 << (index % 64);
    }

    pub(super) fn remove(&mut self, index: usize) {
        self.0[index / 64] &= !(1 << (index % 64));
    }

    pub(super) fn insert_all(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(word, more)| *word |= more);
    }

    pub(super) fn without(self, other: Self) -> Self {
        Self(core::array::from_fn(|at| self.0[at] & !other.0[at]))
    }

    /// The first missing piece, upwards from `start` rounded down to a multiple of 64, then from 0.
    pub(super) fn first_missing_from(&self, start: usize) -> Option<usize> {
        let words = self.0.len();
        let word = (0..words).map(|at| (start / 64 + at) % words).find(|&at| self.0[at] != u64::MAX)?;
        Some(word * 64 + self.0[word].trailing_ones() as usize)
    }
}

impl Folio {
    /// A folio of which no piece is claimed, for the address `base` of this owner of a family.
    pub(super) fn new((owner, family): (u64, u64), base: VirtAddr, frame: Frame, source: Source) -> Self {
        let [claimed, done, cancelled, zero] = [Pieces::NONE; 4];
        Self { owner, family, base, frame, claimed, done, cancelled, zero, touched: 0, source }
    }

    /// Whether it is a page of a pool of huge pages, of a task's memory or of a file.
    pub(super) fn is_hugetlb(&self) -> bool {
        self.source != Source::Allocated
    }

    pub(super) fn is_of_file(&self) -> bool {
        matches!(self.source, Source::File { .. })
    }

    fn is_page_of(&self, file: &FileNode, pages: &Range<u64>) -> bool {
        matches!(self.source, Source::File { number, index }
            if number == file.number() && pages.contains(&(index * Order::GIGANTIC.frames())))
    }

    /// Whether it is a page of a pool that this address space maps in the range.
    pub(super) fn is_pool_page_in(&self, owner: u64, range: VirtRange) -> bool {
        let whole = VirtRange::from_len(self.base, PageSize::Size1G.bytes());
        self.is_hugetlb() && self.owner == owner && whole.overlaps(range)
    }

    pub(super) fn used_reservation(&self) -> bool {
        self.source == Source::Pool { reserved: true }
    }

    /// The pieces of a page of a pool that no CPU has mapped or maps, or, of a file's page, that are neither
    /// ready nor known to be zero, in the order of [`Self::next_ahead`].
    pub(super) fn missing_ahead(&self) -> impl Iterator<Item = usize> {
        let start = self.touched + TABLE_ENTRIES / 2;
        let known = |index| self.cancelled.contains(index) || self.zero.contains(index);
        let missing = move |index: &usize| !self.claimed.contains(*index) && !known(*index);
        (start..start + TABLE_ENTRIES).map(|index| index % TABLE_ENTRIES).filter(missing)
    }

    /// The piece for an idle CPU to clear: half a folio away from the piece that was touched last. A task
    /// that touches piece after piece, in either direction, would only wait for a neighbour that is being
    /// cleared.
    pub(super) fn next_ahead(&self) -> Option<usize> {
        self.claimed.first_missing_from((self.touched + TABLE_ENTRIES / 2) % TABLE_ENTRIES)
    }

    pub(super) fn claim(&mut self, slot: usize, index: usize) -> Piece {
        self.claimed.insert(index);
        self.piece(slot, index)
    }

    pub(super) fn piece(&self, slot: usize, index: usize) -> Piece {
        let Self { owner, family, base, frame, .. } = *self;
        Piece { slot, index, owner, family, base, folio: frame, zero: self.zero.contains(index) }
    }

    /// The pieces that lie wholly in a range of addresses.
    pub(super) fn inside(&self, range: VirtRange) -> Pieces {
        let mut inside = Pieces::NONE;
        let place = |index: usize| VirtRange::from_len(self.base.add(index as u64 * BLOCK_SIZE), BLOCK_SIZE);
        (0..TABLE_ENTRIES).filter(|&index| range.covers(place(index))).for_each(|index| inside.insert(index));
        inside
    }

    /// Stops these pieces from being started. A claimed piece is ended by the holder of its claim, which may
    /// find that it was the last.
    pub(super) fn cancel(&mut self, pieces: Pieces) {
        self.cancelled.insert_all(pieces);
        let more = pieces.without(self.claimed);
        self.claimed.insert_all(more);
        self.done.insert_all(more);
    }

    /// The folio, if all its pieces are done.
    pub(super) fn cleared(&self) -> Option<Cleared> {
        let Self { owner, family, base, frame, .. } = *self;
        (self.done == Pieces::ALL && !self.is_hugetlb()).then_some(Cleared { owner, family, base, frame })
    }
}

impl Piece {
    pub(super) fn frames(&self) -> FrameRange {
        FrameRange::new(self.folio.add((self.index * BLOCK_FRAMES) as u64), BLOCK_FRAMES as u64)
    }

    pub(super) fn addr(&self) -> VirtAddr {
        self.base.add(self.index as u64 * BLOCK_SIZE)
    }
}

impl GiganticClears {
    pub(in crate::vm) fn new<P: Platform>(tables: &mut TableFrames<'_, '_, P>) -> Result<Self, InitError> {
        let folios = tables.table(GIGANTIC_CLEARS, |_, _| Ok(None))?;
        Ok(Self { count: AtomicUsize::new(0), folios: SpinLock::new(Rank::GiganticClears, folios) })
    }

    /// A hint.
    #[inline]
    pub(in crate::vm) fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// Whether one more can begin; a hint.
    pub(super) fn has_room(&self) -> bool {
        self.count.load(Ordering::Relaxed) < GIGANTIC_CLEARS
    }

    pub(super) fn lock<'a, P: Platform>(&'a self, platform: &'a P) -> SpinGuard<'a, Folios, P> {
        self.folios.lock(platform)
    }

    /// Begins with a page of a pool; returns whether it did.
    pub(super) fn begin<P: Platform>(&self, pages: &PageAllocator<'_, P>, page: Folio) -> bool {
        let mut folios = self.lock(pages.platform());
        // A frame that went bad before was only marked; a failure from here on completes the page.
        let good = !pages.frames().has_bad(page.frame);
        let slot = folios.iter().position(Option::is_none).filter(|_| good);
        slot.inspect(|&slot| self.put(&mut folios, slot, page)).is_some()
    }

    /// Puts a folio into a free slot.
    pub(super) fn put(&self, folios: &mut Folios, slot: usize, folio: Folio) {
        debug_assert!(folios[slot].is_none(), "the slot is in use");
        folios[slot] = Some(folio);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Cancels these pages (of 4 KiB) of a file that is closed, cut off there, or has no other reference,
    /// where they are cleared piece by piece. The leaves of pieces stay.
    pub(in crate::vm) fn cancel_of_file<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        file: &FileNode,
        gone: &Range<u64>,
    ) {
        for slot in (0..GIGANTIC_CLEARS).filter(|_| self.any()) {
            let mut folios = self.lock(pages.platform());
            let Some(folio) = folios[slot].as_mut().filter(|folio| folio.is_page_of(file, gone)) else {
                continue;
            };
            // No CPU claims a piece from here on.
            folio.cancelled = Pieces::ALL;
            let (source, page) = (folio.source, folio.frame);
            drop(folios);
            pages.frames().wait_for_huge_clears(page, Order::GIGANTIC);
            self.end_entry(pages.platform(), slot, (source, page));
        }
    }

    /// Takes the entry of a page out of its slot, unless another CPU has, after which a new entry may stand
    /// there.
    pub(super) fn end_entry<P: Platform>(&self, platform: &P, slot: usize, (source, page): (Source, Frame)) {
        let mut folios = self.lock(platform);
        if folios[slot].as_ref().is_some_and(|folio| folio.source == source && folio.frame == page) {
            folios[slot] = None;
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Takes a folio out of its slot if all its pieces are done.
    pub(super) fn take_cleared(&self, place: &mut Option<Folio>) -> Option<Cleared> {
        let cleared = place.as_ref()?.cleared()?;
        *place = None;
        self.count.fetch_sub(1, Ordering::Relaxed);
        Some(cleared)
    }
}
