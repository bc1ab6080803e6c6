//! The record of one 2 MiB block.

use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::bitmap::{Bitmap, FrameMask};
use super::block_mapcount::SmallMaps;
use super::columns::{Columns, TakenTables};
use super::descriptor::Descriptor;
use super::lanes::{LaneWidth, Lanes};
use crate::addr::{Frame, PhysAddr};
use crate::platform::FramePlatform;
use crate::rank::Rank;
use crate::sync::RawLock;

/// Bytes of a per-CPU list. A block's record holds the offset of its lists.
pub(crate) const LIST_BYTES: usize = 64;
/// Per-CPU lists of each zone, padded to a power of two.
pub(crate) const LISTS: usize = 32;
/// Bytes in which that offset is counted: those of all zones fit 16 bits then. An address may contain a register
/// times two, so this costs no instruction.
const GROUP_UNIT: usize = 2;

/// What a block is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum BlockState {
    /// Whole, free, and in its region's pool. The record is all zero.
    Whole = 0,
    /// Used in small pieces: bitmaps and columns are valid.
    Small = 1,
    /// The start of a folio of order 9 or more.
    Folio = 2,
    /// A later part of a folio of order 10 or more.
    FolioTail = 3,
    /// All of it holds the manager's metadata.
    Metadata = 4,
    /// Not memory.
    Absent = 5,
    /// On a per-CPU list of whole blocks.
    Listed = 6,
}

/// A block's record. Fields change only under the block's lock unless a doc says otherwise; all are atomics,
/// so that checks may read them without it.
#[repr(C, align(64))]
pub struct Block {
    lock: RawLock,
    state: AtomicU8,
    /// The order of the folio that starts here, while the state is [`BlockState::Folio`].
    pub(crate) order: AtomicU8,
    /// One more than the largest order of a free aligned group; 0 without one, as in any block not in small
    /// pieces.
    pub(crate) free_order: AtomicU8,
    /// The list of its shard's index that the block is on, which may promise more than the block has; 0 on
    /// none. Changes under the shard's lock.
    pub(crate) listed: AtomicU8,
    /// How large map counts are ([`LaneWidth`]).
    width: AtomicU8,
    /// The state of the folio of order 9 that starts here, as [`super::FrameState`].
    folio_state: AtomicU8,
    /// 1 when free frames of a block in small pieces are known to be zero ([`Columns::zeroed`]). In a page of
    /// a pool of huge pages: what is known of the block ([`Self::huge_zeroes`]).
    has_zeroed: AtomicU8,
    /// The shard that the block belongs to.
    pub(crate) shard: AtomicU16,
    /// Free frames.
    pub(crate) free: AtomicU16,
    /// Frames that can be free at once: not those beyond a range's edge, bad ones, and tables of blocks.
    pub(crate) capacity: AtomicU16,
    /// The zone and the mobility group that the block serves, as the offset of its per-CPU lists, in
    /// [`GROUP_UNIT`]s. Valid unless the state is [`BlockState::Whole`].
    group: AtomicU16,
    /// Next block on the shard's list, as block number plus one. Both links change under the shard's lock.
    pub(crate) next: AtomicU32,
    /// The previous one.
    pub(crate) previous: AtomicU32,
    /// 2 MiB leaves that map this block.
    pub(crate) large_maps: AtomicU32,
    /// 1 GiB leaves that map the gigantic folio starting here.
    pub(crate) gigantic_maps: AtomicU32,
    /// Leaves of any size that map the folio of order 10 or more starting here.
    pub(crate) folio_maps: AtomicU64,
    columns: AtomicPtr<Columns>,
    /// The address of the block's first state, less the number of its first frame, so that a frame's number
    /// indexes it directly. Null together with `columns`.
    states: AtomicPtr<AtomicU8>,
    lanes: AtomicU64,
    /// Frames that are not free.
    pub(crate) used: Bitmap,
    /// The first frame of each folio in use. In a block inside a folio, if it has no slot for counts: frames
    /// that one 4 KiB leaf maps (`small_maps`).
    pub(crate) heads: Bitmap,
    /// Frames that have an owner besides the leaves that map them.
    pub(crate) held: Bitmap,
}

const _: () = assert!(size_of::<Block>() == 256);
const _: () = assert!(size_of::<Bitmap>() >= size_of::<Descriptor>());

impl Block {
    /// Bytes of a record, from its start, that a free of one of the block's frames to the store changes.
    pub(crate) const FREED_BYTES: usize = core::mem::offset_of!(Self, held);

    /// Takes the block's lock.
    #[inline]
    pub(crate) fn lock<P: FramePlatform>(&self, platform: &P) {
        self.lock.lock(platform, Rank::Block);
    }

    /// Takes the block's lock if it is free.
    #[inline]
    pub(crate) fn try_lock<P: FramePlatform>(&self, platform: &P) -> bool {
        self.lock.try_lock(platform, Rank::Block)
    }

    /// Gives the block's lock back.
    #[inline]
    pub(crate) fn unlock<P: FramePlatform>(&self, platform: &P) {
        self.lock.unlock(platform, Rank::Block);
    }

    /// What the block is used for.
    #[inline]
    pub fn state(&self) -> BlockState {
        match self.state.load(Ordering::Acquire) {
            0 => BlockState::Whole,
            1 => BlockState::Small,
            2 => BlockState::Folio,
            3 => BlockState::FolioTail,
            4 => BlockState::Metadata,
            5 => BlockState::Absent,
            _ => BlockState::Listed,
        }
    }

    #[inline]
    pub(crate) fn set_state(&self, state: BlockState) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// The columns of a block in small pieces.
    #[inline(always)]
    pub fn columns(&self) -> Option<&Columns> {
        // SAFETY: M1, M2: columns are boot memory, which is never freed, and consist of atomics.
        unsafe { self.columns.load(Ordering::Acquire).as_ref() }
    }

    /// Clears the block's columns and names them, before it becomes one in small pieces. `origin` is that of
    /// its first frame. The counts of a folio of order 9 move to the columns, and its slot is returned,
    /// unless they are wide.
    ///
    /// # Safety
    /// The caller holds the block's lock. The block is not in small pieces, so that no code uses its columns,
    /// which are `columns`. Its first frame is `first`.
    pub(crate) unsafe fn open_columns<P: FramePlatform>(
        &self,
        platform: &P,
        columns: &Columns,
        first: Frame,
        origin: u64,
    ) -> Option<(PhysAddr, LaneWidth)> {
        let columns = core::ptr::from_ref(columns).cast_mut();
        // SAFETY: M2: by this function's contract; no code uses the columns of a block not in small pieces.
        unsafe { Columns::open(columns, origin) };
        let slot = self.lanes_at();
        let lanes = self.slot_lanes(platform);
        let tables = if self.state() == BlockState::Folio { self.tables() } else { 0 };
        let before = SmallMaps::new(tables, lanes);
        let states = columns.cast::<AtomicU8>().wrapping_add(Columns::STATES).wrapping_sub(first.0 as usize);
        debug_assert!(!states.is_null());
        self.columns.store(columns, Ordering::Release);
        self.states.store(states, Ordering::Release);
        let wide_lanes = lanes.filter(|lanes| matches!(lanes, Lanes::Wide(_)));
        let to = wide_lanes.or_else(|| self.columns().map(Columns::lanes)).filter(|_| before.any());
        to.inspect(|&lanes| before.copy_to(lanes));
        let wide = slot.is_some_and(|(_, width)| width == LaneWidth::Wide);
        if !wide {
            self.set_lanes(None);
        }
        slot.filter(|_| !wide)
    }

    /// Takes the tables of a block in small pieces that needs none any more. Under the block's lock.
    pub(crate) fn take_tables(&self) -> TakenTables {
        self.columns().map_or([None; super::columns::BLOCK_TABLES], Columns::take_tables)
    }

    /// The state of a frame of this block, if the block is in small pieces.
    ///
    /// # Safety
    /// The frame lies in this block.
    #[inline(always)]
    pub(crate) unsafe fn state_cell(&self, frame: Frame) -> Option<&AtomicU8> {
        let states = self.states.load(Ordering::Acquire);
        // SAFETY: M2: a named table of states has 512, and the frame is one of the block's.
        (!states.is_null()).then(|| unsafe { &*states.wrapping_add(frame.0 as usize) })
    }

    /// The state of the folio of order 9 that starts here.
    #[inline(always)]
    pub(crate) fn folio_state_cell(&self) -> &AtomicU8 {
        &self.folio_state
    }

    /// Whether a block in small pieces may have free frames known to be zero. Under the block's lock.
    #[inline(always)]
    pub(crate) fn has_zeroed(&self) -> bool {
        self.has_zeroed.load(Ordering::Relaxed) != 0
    }

    /// Whether a block of a page of a pool of huge pages is known to be zero. Zero in all other folios.
    #[inline]
    pub(crate) fn huge_zeroes(&self) -> &AtomicU8 {
        debug_assert_ne!(self.state(), BlockState::Small);
        &self.has_zeroed
    }

    /// The free frames known to be zero, of a block in small pieces. Under the block's lock.
    pub fn zeroed(&self) -> FrameMask {
        match self.columns() {
            Some(columns) if self.has_zeroed() => columns.zeroed().load(),
            _ => FrameMask::EMPTY,
        }
    }

    /// Replaces the set of free frames known to be zero, of a block in small pieces. Under the block's lock.
    pub(crate) fn set_zeroed(&self, frames: FrameMask) {
        debug_assert!(frames.intersection(self.used.load()).is_empty());
        self.has_zeroed.store((!frames.is_empty()).into(), Ordering::Relaxed);
        if let Some(columns) = self.columns() {
            columns.zeroed().store(frames);
        }
    }

    /// The address and width of the map counts of a block that has a slot for them: one of a folio of whole
    /// blocks, or one in small pieces with wide counts.
    #[inline]
    pub(crate) fn lanes_at(&self) -> Option<(PhysAddr, LaneWidth)> {
        match self.lanes.load(Ordering::Acquire) {
            0 => None,
            at => Some((PhysAddr(at - 1), self.width())),
        }
    }

    fn width(&self) -> LaneWidth {
        match self.width.load(Ordering::Relaxed) {
            0 => LaneWidth::Narrow,
            1 => LaneWidth::Wide,
            #[cfg(feature = "published")]
            3 => LaneWidth::Cells,
            _ => LaneWidth::Bits,
        }
    }

    #[inline]
    pub(crate) fn is_wide(&self) -> bool {
        self.width.load(Ordering::Relaxed) == LaneWidth::Wide as u8
    }

    /// How many tables map all of a block of a folio of whole blocks, by 4 KiB leaves in order. Under the
    /// block's lock. (The field holds the capacity of a block in small pieces.)
    #[inline]
    pub(super) fn table_maps(&self) -> &AtomicU16 {
        &self.capacity
    }

    /// Whether a count of a block in small pieces is the largest that its lane holds. Under the block's lock.
    pub(crate) fn has_full_count(&self) -> bool {
        !self.is_wide() && self.columns().is_some_and(Columns::is_full)
    }

    /// Moves the counts of a block in small pieces to wide lanes in a slot. Under the block's lock.
    pub(crate) fn widen<P: FramePlatform>(&self, platform: &P, at: PhysAddr) {
        let Some(narrow) = self.columns().map(Columns::lanes) else { return };
        self.set_lanes(Some((at, LaneWidth::Wide)));
        if let Some(Lanes::Wide(wide)) = self.slot_lanes(platform) {
            narrow.copy_to(wide);
        }
    }

    /// Makes the counts of a block in small pieces narrow again, all of which are zero, and gives up the slot
    /// of wide ones. Under the block's lock.
    pub(crate) fn narrow(&self) -> Option<(PhysAddr, LaneWidth)> {
        let slot = self.lanes_at()?;
        self.columns().inspect(|columns| columns.clear_counts());
        self.set_lanes(None);
        Some(slot)
    }

    /// Records the address and width of the lanes.
    #[inline]
    pub(crate) fn set_lanes(&self, at: Option<(PhysAddr, LaneWidth)>) {
        let width = at.map_or(LaneWidth::Narrow, |(_, width)| width);
        self.width.store(width as u8, Ordering::Relaxed);
        self.lanes.store(at.map_or(0, |(at, _)| at.0 + 1), Ordering::Release);
    }

    /// The lanes of a block in small pieces. Under its lock.
    #[inline]
    pub(crate) fn piece_lanes<P: FramePlatform>(&self, platform: &P) -> Option<Lanes<'_>> {
        let columns = self.columns()?;
        if self.is_wide() { self.slot_lanes(platform) } else { Some(columns.lanes()) }
    }

    /// The lanes in the slot of a block of a folio of whole blocks. Under its lock.
    #[inline]
    pub(super) fn slot_lanes<P: FramePlatform>(&self, platform: &P) -> Option<Lanes<'_>> {
        let (at, width) = self.lanes_at()?;
        // SAFETY: M3: `lanes` names this block's counts until it changes under the lock.
        Some(unsafe { Lanes::at(platform, at, width) })
    }

    /// How many 4 KiB leaves map each frame of the block. Under its lock.
    #[inline]
    pub(crate) fn small_maps<P: FramePlatform>(&self, platform: &P) -> SmallMaps<'_> {
        match self.piece_lanes(platform) {
            Some(lanes) => SmallMaps::new(0, Some(lanes)),
            None if matches!(self.state(), BlockState::Folio | BlockState::FolioTail) => {
                SmallMaps::new(self.tables(), self.any_lanes(platform))
            }
            None => SmallMaps::new(0, None),
        }
    }

    /// The lanes of a block of a folio of whole blocks: in its slot, or in its record.
    #[inline]
    pub(super) fn any_lanes<P: FramePlatform>(&self, platform: &P) -> Option<Lanes<'_>> {
        let in_record = || (self.state() == BlockState::FolioTail).then_some(Lanes::Bits(&self.heads));
        self.slot_lanes(platform).or_else(in_record)
    }

    /// The descriptor of the folio of order 9 or more that starts here. It occupies the unused `heads`.
    #[inline]
    pub fn folio(&self) -> &Descriptor {
        debug_assert!(matches!(self.state(), BlockState::Folio | BlockState::Listed));
        self.folio_words()
    }

    /// The same of a folio that another CPU may free meanwhile: its words mean something else then.
    #[inline]
    pub(crate) fn folio_words(&self) -> &Descriptor {
        // SAFETY: M2: both are atomics, valid for every bit pattern, and the map is larger and more aligned.
        unsafe { &*core::ptr::from_ref(&self.heads).cast::<Descriptor>() }
    }

    /// The block's zone.
    #[inline]
    pub fn zone(&self) -> usize {
        self.lists_at() / (LISTS * LIST_BYTES)
    }

    /// The number of the mobility group that the block serves.
    #[inline]
    pub fn mobility(&self) -> u8 {
        (self.lists_at() / LIST_BYTES % LISTS) as u8
    }

    /// The byte offset of the per-CPU lists of the block's zone and mobility group.
    #[inline(always)]
    pub(crate) fn lists_at(&self) -> usize {
        usize::from(self.group.load(Ordering::Relaxed)) * GROUP_UNIT
    }

    #[inline]
    pub(crate) fn set_group(&self, zone: u8, mobility: u8) {
        let list = usize::from(zone) * LISTS + usize::from(mobility);
        self.group.store((list * LIST_BYTES / GROUP_UNIT) as u16, Ordering::Relaxed);
    }

    /// Whether the block is in small pieces, all of them free. A hint without the block's lock.
    #[inline]
    pub(crate) fn is_entirely_free(&self) -> bool {
        self.state() == BlockState::Small
            && self.free.load(Ordering::Relaxed) == self.capacity.load(Ordering::Relaxed)
    }

    /// Whether a folio of `count` frames, a power of two below a block's, is in use at `index` and not held.
    pub fn is_folio(&self, index: usize, count: usize) -> bool {
        let starts = self.used.contains(index) && self.heads.contains(index) && !self.held.contains(index);
        starts && self.folio_frames(index) == count
    }

    /// How many frames the folio that starts at `index` has: up to the next head, free or held frame.
    pub(crate) fn folio_frames(&self, index: usize) -> usize {
        let inside =
            |at: usize| self.used.contains(at) && !self.heads.contains(at) && !self.held.contains(at);
        let end = (index + 1..crate::limits::BLOCK_FRAMES).find(|&at| !inside(at));
        end.unwrap_or(crate::limits::BLOCK_FRAMES) - index
    }

    /// Makes the record all zero, except for the lock, which the caller holds.
    pub(crate) fn reset(&self) {
        for field in [&self.state, &self.order, &self.free_order, &self.listed] {
            field.store(0, Ordering::Relaxed);
        }
        for field in [&self.width, &self.folio_state, &self.has_zeroed] {
            field.store(0, Ordering::Relaxed);
        }
        for field in [&self.shard, &self.free, &self.capacity, &self.group] {
            field.store(0, Ordering::Relaxed);
        }
        for field in [&self.next, &self.previous, &self.large_maps, &self.gigantic_maps] {
            field.store(0, Ordering::Relaxed);
        }
        for field in [&self.folio_maps, &self.lanes] {
            field.store(0, Ordering::Release);
        }
        self.columns.store(core::ptr::null_mut(), Ordering::Release);
        self.states.store(core::ptr::null_mut(), Ordering::Release);
        for map in [&self.used, &self.heads, &self.held] {
            map.store(FrameMask::EMPTY);
        }
    }
}
