//! What describes the frames of a block in small pieces: columns for all, and tables that come on demand.
//!
//! The columns are read for many frames at once: the map count ([`Lanes`]), the [`FrameState`] and others.
//! They stand in a table beside the records, 1600 bytes for every block of the machine, so a block needs no
//! memory to be used in small pieces, and all of its frames can be handed out. An allocation or a free
//! touches one byte on its common path, 64 of which share a cache line.
//!
//! What only some frames need stands in *tables* of one frame each, which the allocator adds when the first
//! such frame of the block is used (`page_alloc/request/tables.rs`): a [`Rows`] with the [`Descriptor`]s of
//! 64 frames, and the [`Origins`] of all. A row is not cleared for a new owner of its frame.
//!
//! Folios of 16 frames and more need no table of origins: there is a column with one origin for each group of
//! 16 frames, from which those of the group's frames follow. With a table, an entry of zero says the same.

use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::bitmap::Bitmap;
use super::descriptor::{Descriptor, DescriptorFlags};
use super::lanes::Lanes;
use crate::addr::{Frame, Order};
use crate::limits::{BLOCK_FRAMES, FRAME_SIZE, ROWS_FRAMES};

/// Tables that a block in small pieces can have: one of origins, and rows for each group of frames.
pub(crate) const BLOCK_TABLES: usize = 1 + GROUPS;
const GROUPS: usize = BLOCK_FRAMES / ROWS_FRAMES;
/// Frames that share an origin, if they are of one folio.
const ORIGIN_FRAMES: usize = 16;
const ORIGIN_ORDER: u8 = ORIGIN_FRAMES.trailing_zeros() as u8;

/// The descriptors of a group of frames.
#[repr(C)]
pub(crate) struct Rows([Descriptor; ROWS_FRAMES]);

/// The origin of each frame of a block, where an anonymous folio starts; zero where its group's origin says
/// it.
#[repr(C)]
pub(crate) struct Origins([AtomicU64; BLOCK_FRAMES]);

const _: () = assert!(size_of::<Rows>() as u64 == FRAME_SIZE && size_of::<Origins>() as u64 == FRAME_SIZE);

/// The place of a table.
#[repr(transparent)]
struct Link<T>(AtomicPtr<T>);

impl<T> Link<T> {
    #[inline(always)]
    fn get(&self) -> Option<&T> {
        // SAFETY: M2: a named table stays until every frame of the block is free, and consists of atomics.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    fn set(&self, table: *mut T) {
        self.0.store(table, Ordering::Release);
    }

    fn take(&self) -> bool {
        !self.0.swap(core::ptr::null_mut(), Ordering::AcqRel).is_null()
    }
}

/// The frames that the tables of a block fill: 40 bits each.
#[repr(C)]
struct TableFrames {
    low: [AtomicU32; BLOCK_TABLES],
    high: [AtomicU8; BLOCK_TABLES],
}

impl TableFrames {
    fn get(&self, at: usize) -> Frame {
        let high = u64::from(self.high[at].load(Ordering::Relaxed));
        Frame(high << u32::BITS | u64::from(self.low[at].load(Ordering::Relaxed)))
    }

    fn set(&self, at: usize, frame: Frame) {
        self.low[at].store(frame.0 as u32, Ordering::Relaxed);
        self.high[at].store((frame.0 >> u32::BITS) as u8, Ordering::Relaxed);
    }
}

/// The columns of one block. They mean something while it is used in small pieces.
#[repr(C, align(64))]
pub struct Columns {
    rows: [Link<Rows>; GROUPS],
    origins: Link<Origins>,
    table_frames: TableFrames,
    /// Tables of the block that stand in frames of it.
    own_tables: AtomicU16,
    /// 1 when frames may be in use that cannot move (`page_alloc/store/areas.rs`).
    tainted: AtomicU8,
    /// Pages of files that were accessed, and those that are newer than their file.
    marks: [[AtomicU64; BLOCK_FRAMES / 64]; 2],
    group_origins: [AtomicU64; BLOCK_FRAMES / ORIGIN_FRAMES],
    zeroed: Bitmap,
    counts: [AtomicU64; BLOCK_FRAMES / 8],
    states: [AtomicU8; BLOCK_FRAMES],
}

const _: () = assert!(size_of::<Columns>() == 1600);

/// Offset of the narrow counts.
pub(crate) const COUNTS_AT: usize = core::mem::offset_of!(Columns, counts);

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

/// The tables that a block gave up, each by its frame.
pub(crate) type TakenTables = [Option<Frame>; BLOCK_TABLES];

impl Columns {
    pub(super) const STATES: usize = core::mem::offset_of!(Columns, states);

    /// Prepares the columns of a block that is about to be used in small pieces; none of its frames is free.
    ///
    /// # Safety
    /// No other code uses the columns.
    pub(super) unsafe fn open(columns: *mut Self, origin: u64) {
        // SAFETY: M2, M4: by this function's contract the columns are the caller's; zeroes are valid values.
        unsafe { columns.write_bytes(0, 1) };
        // SAFETY: M2: a table in boot memory, all of it atomics.
        let columns = unsafe { &*columns };
        if origin != 0 {
            columns.set_origins_from(origin);
        }
    }

    /// The descriptor of a frame, if its group has rows.
    #[inline]
    pub(crate) fn row(&self, index: usize) -> Option<&Descriptor> {
        let rows = self.rows[index / ROWS_FRAMES % GROUPS].get()?;
        Some(&rows.0[index % ROWS_FRAMES])
    }

    /// The descriptors that there are, by group, each with the index of its first frame.
    pub fn rows(&self) -> impl Iterator<Item = (usize, &[Descriptor])> {
        let groups = self.rows.iter().enumerate();
        groups.filter_map(|(at, link)| Some((at * ROWS_FRAMES, link.get()?.0.as_slice())))
    }

    /// Gives the group of a frame its rows, unless it has some; returns whether it took them. Under the
    /// block's lock.
    ///
    /// # Safety
    /// `table` is the memory of `frame`, all zero, and used for nothing else while the columns name it.
    pub(crate) unsafe fn add_rows(&self, index: usize, table: *mut u8, frame: Frame) -> bool {
        let group = index / ROWS_FRAMES % GROUPS;
        let missing = self.rows[group].get().is_none();
        if missing {
            self.table_frames.set(group, frame);
            self.rows[group].set(table.cast());
        }
        missing
    }

    /// Gives the block a table of origins, unless it has one; returns whether it took it. Under the block's
    /// lock.
    ///
    /// # Safety
    /// As for [`Self::add_rows`].
    pub(crate) unsafe fn add_origins(&self, table: *mut u8, frame: Frame) -> bool {
        let missing = self.origins.get().is_none();
        if missing {
            self.table_frames.set(GROUPS, frame);
            self.origins.set(table.cast());
        }
        missing
    }

    /// How many tables stand in frames of the block itself. Changes under its lock.
    pub(crate) fn own_tables(&self) -> u16 {
        self.own_tables.load(Ordering::Relaxed)
    }

    pub(crate) fn set_own_tables(&self, tables: u16) {
        self.own_tables.store(tables, Ordering::Relaxed);
    }

    /// Whether the block counts as tainted in its area. Under the block's lock.
    pub(crate) fn is_tainted(&self) -> bool {
        self.tainted.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn set_tainted(&self, tainted: bool) {
        self.tainted.store(tainted.into(), Ordering::Relaxed);
    }

    /// Gives up all tables. Under the block's lock; none of its frames needs one.
    pub(crate) fn take_tables(&self) -> TakenTables {
        let take = |at: usize| self.rows.get(at).map_or_else(|| self.origins.take(), Link::take);
        core::array::from_fn(|at| take(at).then(|| self.table_frames.get(at)))
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

    /// Marks pages of files, a bit for each of the 64 frames around `index`: as accessed, and as newer than
    /// their file. The marks are not cleared for a new owner of the frame.
    #[inline]
    pub(crate) fn mark(&self, index: usize, accessed: u64, dirty: u64) {
        for (marks, bits) in self.marks.iter().zip([accessed, dirty]) {
            let word = &marks[index % BLOCK_FRAMES / 64];
            // Mostly they are marked already.
            if word.load(Ordering::Relaxed) & bits != bits {
                word.fetch_or(bits, Ordering::AcqRel);
            }
        }
    }

    fn marks_with(&self, index: usize, mark: DescriptorFlags) -> &AtomicU64 {
        &self.marks[usize::from(mark == DescriptorFlags::DIRTY)][index % BLOCK_FRAMES / 64]
    }

    pub(crate) fn has_mark(&self, index: usize, mark: DescriptorFlags) -> bool {
        self.marks_with(index, mark).load(Ordering::Acquire) >> (index % 64) & 1 == 1
    }

    /// Takes a mark off; returns whether it was there.
    pub(crate) fn take_mark(&self, index: usize, mark: DescriptorFlags) -> bool {
        let bit = 1 << (index % 64);
        self.marks_with(index, mark).fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }

    /// The origin of the anonymous folio that starts at a frame; arbitrary until it is set.
    #[inline]
    pub(crate) fn origin(&self, index: usize) -> u64 {
        let origins = self.origins.get();
        match origins.map_or(0, |origins| origins.0[index % BLOCK_FRAMES].load(Ordering::Relaxed)) {
            0 => self.group_origins[index / ORIGIN_FRAMES % self.group_origins.len()]
                .load(Ordering::Relaxed)
                .wrapping_add((index % ORIGIN_FRAMES) as u64),
            own => own,
        }
    }

    /// Sets the origin, not zero, of the folio of this order that starts at a frame. Returns whether it
    /// could: one of less than 16 frames needs a table. Its owner calls, or code under the block's lock; a
    /// task that adds a table meanwhile does not read origins, so none is lost.
    #[inline]
    pub(crate) fn set_origin(&self, index: usize, order: Order, origin: u64) -> bool {
        if let Some(origins) = self.origins.get() {
            origins.0[index % BLOCK_FRAMES].store(origin, Ordering::Relaxed);
            return true;
        }
        let groups = order.get() >= ORIGIN_ORDER;
        if groups {
            let group = index / ORIGIN_FRAMES % self.group_origins.len();
            self.group_origins[group].store(origin, Ordering::Relaxed);
        }
        groups
    }

    /// Passes the origin of the folio that starts at `head` on to its parts, which start at each `step`-th
    /// frame of a run. Under the block's lock.
    pub(crate) fn pass_origin(&self, head: usize, start: usize, count: usize, step: usize) {
        let first = self.origin(head).wrapping_sub(head as u64);
        if let Some(origins) = self.origins.get() {
            for at in (start..start + count).step_by(step) {
                origins.0[at].store(first.wrapping_add(at as u64), Ordering::Relaxed);
            }
            return;
        }
        for group in start / ORIGIN_FRAMES..(start + count).div_ceil(ORIGIN_FRAMES) {
            let origin = first.wrapping_add((group * ORIGIN_FRAMES) as u64);
            self.group_origins[group].store(origin, Ordering::Relaxed);
        }
    }

    /// Without a table of origins, the origins of all frames follow on this one, of the first. Under the
    /// block's lock, while no frame has an origin of its own.
    pub(crate) fn set_origins_from(&self, origin: u64) {
        debug_assert!(self.origins.get().is_none());
        for (group, cell) in self.group_origins.iter().enumerate() {
            cell.store(origin.wrapping_add((group * ORIGIN_FRAMES) as u64), Ordering::Relaxed);
        }
    }

    /// The map counts of a byte each, under the block's lock.
    #[inline]
    pub(super) fn lanes(&self) -> Lanes<'_> {
        Lanes::Narrow(&self.counts)
    }

    /// Counts the first leaf of a frame that is a folio by itself. Under the block's lock.
    #[inline]
    pub(crate) fn count_first(&self, index: usize) {
        let (word, shift) = (&self.counts[index % BLOCK_FRAMES / 8], index % 8 * 8);
        let counts = word.load(Ordering::Relaxed);
        debug_assert_eq!(counts >> shift & 0xff, 0, "a new frame is mapped already");
        word.store(counts + (1 << shift), Ordering::Relaxed);
        self.set_state(index, FrameState::UNKNOWN);
    }

    /// Whether a frame's count fills its byte. Under the block's lock.
    pub(super) fn is_full(&self) -> bool {
        self.counts.iter().any(|word| super::lanes::has_full_lane(word.load(Ordering::Relaxed)))
    }

    /// Under the block's lock.
    pub(super) fn clear_counts(&self) {
        self.counts.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }
}
