//! What is known of each frame of a block in small pieces: 64 bytes a frame, 32 KiB a block.
//!
//! Of the 64 bytes, 48 are the frame's [`Descriptor`], a row that only the frame's owner looks at. Others stand side by
//! side in columns, because they are read for many frames at once: the map count ([`Lanes`]), and the frame's
//! [`FrameState`]. So the common path of an allocation and of a free touches one byte, 64 of which share a cache line,
//! and no row; and rows need not be cleared when a block is split, since code that takes a frame writes what it uses.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use super::bitmap::Bitmap;
use super::descriptor::Descriptor;
use super::lanes::Lanes;
use crate::addr::Order;
use crate::limits::{BLOCK_FRAMES, DESCRIPTOR_FRAMES, DESCRIPTOR_SIZE, FRAME_SIZE};

/// Bytes of a frame's row.
const ROW_BYTES: usize = size_of::<Descriptor>();
/// Bytes of a frame in columns: a count, a state, a wide count, an origin. Two more hold the map of zeroes, and else nothing yet.
const COLUMN_BYTES: usize = 1 + 1 + 4 + 8;

/// The descriptors of the frames of one block.
#[repr(C)]
pub struct Area {
    rows: [Descriptor; BLOCK_FRAMES],
    counts: [AtomicU64; BLOCK_FRAMES / 8],
    states: [AtomicU8; BLOCK_FRAMES],
    zeroed: Bitmap,
    wide_counts: [AtomicU32; BLOCK_FRAMES],
    origins: [AtomicU64; BLOCK_FRAMES],
    _room: [u8; BLOCK_FRAMES * (DESCRIPTOR_SIZE - ROW_BYTES - COLUMN_BYTES) - size_of::<Bitmap>()],
}

const _: () = assert!(size_of::<Area>() as u64 == DESCRIPTOR_FRAMES as u64 * FRAME_SIZE);
/// Where the columns begin that must be zero in a block that has just been split, and how long they are.
pub(crate) const COLUMNS: (usize, usize) = (BLOCK_FRAMES * ROW_BYTES, BLOCK_FRAMES * 2 + size_of::<Bitmap>());
const _: () = assert!(COLUMNS.0 + COLUMNS.1 == core::mem::offset_of!(Area, wide_counts));

/// Where the narrow counts begin.
pub(crate) const COUNTS_AT: usize = COLUMNS.0;

/// What a free of the folio that starts at a frame has to check; and, while the folio is not in use, whether all of
/// it is known to be zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameState(u8);

/// The bit of a state that says that the folio's memory is known to be zero.
const ZEROED: u8 = 1 << 6;

impl FrameState {
    /// The block's maps must be asked.
    pub(crate) const UNKNOWN: Self = Self(0);
    /// On a per-CPU list, or on its way back; or free since it was there last.
    pub const FREE: Self = Self(1 << 7);
    /// Lost: the memory is broken. It stays so for ever.
    pub(crate) const BAD: Self = Self(1 << 5);
    /// No frame of the allocator's: behind the end of a range, or taken before there was one.
    pub const RESERVED: Self = Self(1 << 5 | 1 << 4);
    /// Part of a block reservation, and not taken yet (`page_alloc/folio/reservation.rs`): neither mapped nor held.
    pub(crate) const UNCLAIMED: Self = Self(1 << 4);

    /// A folio of this order, below a block's, is in use, and none of it was mapped or held since it was handed
    /// out: freeing it needs no other check.
    #[inline(always)]
    pub const fn in_use(order: Order) -> Self {
        Self(order.get() + 1)
    }

    /// The same, and whether the folio is known to be zero.
    #[inline(always)]
    #[must_use]
    pub const fn with_zeroes(self, zeroed: bool) -> Self {
        Self(if zeroed { self.0 | ZEROED } else { self.0 & !ZEROED })
    }

    /// Whether the folio is known to be zero.
    #[inline(always)]
    pub(crate) const fn is_zeroed(self) -> bool {
        self.0 & ZEROED != 0
    }

    /// Whether it is [`Self::FREE`], zero or not.
    #[inline(always)]
    pub const fn is_free(self) -> bool {
        self.0 & !ZEROED == Self::FREE.0
    }

    /// The state that stands in a cell.
    #[inline(always)]
    pub fn of(cell: &AtomicU8) -> Self {
        Self(cell.load(Ordering::Relaxed))
    }

    /// Makes it the state of a cell.
    #[inline(always)]
    pub fn put(self, cell: &AtomicU8) {
        cell.store(self.0, Ordering::Relaxed);
    }
}

impl Area {
    /// Where the states begin.
    pub(super) const STATES: usize = core::mem::offset_of!(Area, states);

    /// The row of a frame.
    #[inline]
    pub(super) fn row(&self, index: usize) -> &Descriptor {
        &self.rows[index]
    }

    /// The state of the frame with this index. Its owner reads and writes it, and so does code that maps or holds the
    /// frame.
    #[inline(always)]
    pub fn state(&self, index: usize) -> FrameState {
        FrameState(self.states[index % BLOCK_FRAMES].load(Ordering::Relaxed))
    }

    /// Where the state of a frame stands.
    #[inline(always)]
    pub(crate) fn state_cell(&self, index: usize) -> &AtomicU8 {
        &self.states[index % BLOCK_FRAMES]
    }

    /// Changes the state of a frame.
    #[inline(always)]
    pub(crate) fn set_state(&self, index: usize, state: FrameState) {
        self.states[index % BLOCK_FRAMES].store(state.0, Ordering::Relaxed);
    }

    /// Changes the states of `start .. start + count`.
    #[inline]
    pub(crate) fn set_states(&self, start: usize, count: usize, state: FrameState) {
        self.states[start..start + count].iter().for_each(|cell| cell.store(state.0, Ordering::Relaxed));
    }

    /// The free frames of the block that are known to be zero. Under the block's lock; meant while the record says that there
    /// are some ([`Block::has_zeroed`](super::Block::has_zeroed)).
    #[inline]
    pub fn zeroed(&self) -> &Bitmap {
        &self.zeroed
    }

    /// Where the origin of the anonymous folio that starts at a frame stands; whatever was there before it had one.
    #[inline]
    pub(crate) fn origin(&self, index: usize) -> &AtomicU64 {
        &self.origins[index % BLOCK_FRAMES]
    }

    /// Puts the narrow counts to zero. Under the block's lock.
    pub(super) fn clear_counts(&self) {
        self.counts.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// The map counts, under the block's lock.
    #[inline]
    pub(super) fn lanes(&self, wide: bool) -> Lanes<'_> {
        if wide { Lanes::Wide(&self.wide_counts) } else { Lanes::Narrow(&self.counts) }
    }
}
