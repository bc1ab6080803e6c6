//! What describes each frame of a block in small pieces: 64 bytes a frame, 32 KiB a block.
//!
//! The frame's [`Descriptor`] is a row of 48 bytes that only the frame's owner reads. The rest is kept in
//! columns, because it is read for many frames at once: the map count ([`Lanes`]), the [`FrameState`] and
//! others. So an allocation or a free touches one byte on its common path, 64 of which share a cache line,
//! and no row. Rows need not be cleared when a block is split, since an allocation writes the fields it uses.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use super::bitmap::Bitmap;
use super::descriptor::Descriptor;
use super::lanes::Lanes;
use crate::addr::Order;
use crate::limits::{BLOCK_FRAMES, DESCRIPTOR_FRAMES, DESCRIPTOR_SIZE, FRAME_SIZE};

const ROW_BYTES: usize = size_of::<Descriptor>();
/// Bytes of a frame in columns: a count, a state, a wide count, an origin. Two more hold the map of zeroes.
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
/// Offset and length of the columns that must be zero in a block that has just been split.
pub(crate) const COLUMNS: (usize, usize) = (BLOCK_FRAMES * ROW_BYTES, BLOCK_FRAMES * 2 + size_of::<Bitmap>());
const _: () = assert!(COLUMNS.0 + COLUMNS.1 == core::mem::offset_of!(Area, wide_counts));

/// Offset of the narrow counts.
pub(crate) const COUNTS_AT: usize = COLUMNS.0;

/// What a free of the folio at this frame must check; of a free folio, also whether it is known to be zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameState(u8);

/// The bit that says that the folio is known to be zero.
const ZEROED: u8 = 1 << 6;

impl FrameState {
    /// The block's maps must be checked.
    pub(crate) const UNKNOWN: Self = Self(0);
    /// On a per-CPU list, or on its way back; or free since it was there last.
    pub const FREE: Self = Self(1 << 7);
    /// Lost for ever: the memory is broken.
    pub(crate) const BAD: Self = Self(1 << 5);
    /// Not the allocator's: beyond the end of a range, or taken before the allocator existed.
    pub const RESERVED: Self = Self(1 << 5 | 1 << 4);
    /// Reserved and not taken yet (`page_alloc/store/reservation.rs`): neither mapped nor held.
    pub(crate) const UNCLAIMED: Self = Self(1 << 4);

    /// A folio of this order, below a block's, is in use, and was never mapped or held: nothing else to
    /// check.
    #[inline(always)]
    pub const fn in_use(order: Order) -> Self {
        Self(order.get() + 1)
    }

    /// The same state, with or without the folio known to be zero.
    #[inline(always)]
    #[must_use]
    pub const fn with_zeroes(self, zeroed: bool) -> Self {
        Self(if zeroed { self.0 | ZEROED } else { self.0 & !ZEROED })
    }

    #[inline(always)]
    pub(crate) const fn is_zeroed(self) -> bool {
        self.0 & ZEROED != 0
    }

    /// Whether it is [`Self::FREE`], zero or not.
    #[inline(always)]
    pub const fn is_free(self) -> bool {
        self.0 & !ZEROED == Self::FREE.0
    }

    /// Reads the state in a cell.
    #[inline(always)]
    pub fn of(cell: &AtomicU8) -> Self {
        Self(cell.load(Ordering::Relaxed))
    }

    /// Stores the state in a cell.
    #[inline(always)]
    pub fn put(self, cell: &AtomicU8) {
        cell.store(self.0, Ordering::Relaxed);
    }
}

impl Area {
    pub(super) const STATES: usize = core::mem::offset_of!(Area, states);

    #[inline]
    pub(super) fn row(&self, index: usize) -> &Descriptor {
        &self.rows[index]
    }

    /// The state of a frame. Its owner, and code that maps or holds the frame, reads and writes it.
    #[inline(always)]
    pub fn state(&self, index: usize) -> FrameState {
        FrameState(self.states[index % BLOCK_FRAMES].load(Ordering::Relaxed))
    }

    #[inline(always)]
    pub(crate) fn state_cell(&self, index: usize) -> &AtomicU8 {
        &self.states[index % BLOCK_FRAMES]
    }

    #[inline(always)]
    pub(crate) fn set_state(&self, index: usize, state: FrameState) {
        self.states[index % BLOCK_FRAMES].store(state.0, Ordering::Relaxed);
    }

    /// Stores the states of `start .. start + count`.
    #[inline]
    pub(crate) fn set_states(&self, start: usize, count: usize, state: FrameState) {
        self.states[start..start + count].iter().for_each(|cell| cell.store(state.0, Ordering::Relaxed));
    }

    /// The free frames known to be zero. Under the block's lock; valid while
    /// `Block::has_zeroed`.
    #[inline]
    pub fn zeroed(&self) -> &Bitmap {
        &self.zeroed
    }

    /// The origin of the anonymous folio that starts at a frame; arbitrary until it is set.
    #[inline]
    pub(crate) fn origin(&self, index: usize) -> &AtomicU64 {
        &self.origins[index % BLOCK_FRAMES]
    }

    /// Under the block's lock.
    pub(super) fn clear_counts(&self) {
        self.counts.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// The map counts, under the block's lock.
    #[inline]
    pub(super) fn lanes(&self, wide: bool) -> Lanes<'_> {
        if wide { Lanes::Wide(&self.wide_counts) } else { Lanes::Narrow(&self.counts) }
    }
}
