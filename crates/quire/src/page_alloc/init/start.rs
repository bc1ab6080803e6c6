//! Takes over a machine's memory: takes the tables from it, and frees the rest into the pools.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::addr::{BlockNumber, Frame, FrameRange};
use crate::clear::Clearer;
use crate::cpu::CpuId;
use crate::error::InitError;
use crate::limits::{
    BLOCK_FRAMES, FRAME_SIZE, MAX_CPUS, MAX_NODES, MAX_PHYS_BYTES, MAX_RANGES, SECTION_BLOCKS,
};
use crate::memmap::{Block, BlockState, BootMemory, FrameMask, FrameState, MemMap};
use crate::page_alloc::allocator::PageAllocator;
use crate::page_alloc::frames::Frames;
use crate::page_alloc::init::boot_tables::Tables;
use crate::page_alloc::init::config::{AllocatorConfig, MemoryRange};
use crate::page_alloc::init::layout::Layout;
use crate::page_alloc::mapcount::MapCounts;
use crate::page_alloc::mapcount::deferred_list::DeferredSplits;
use crate::page_alloc::pcp::Lists;
#[cfg(feature = "published")]
use crate::page_alloc::pcp::guarded;
use crate::page_alloc::request::Requests;
use crate::page_alloc::store::marks::BY_RULE;
use crate::page_alloc::store::slots::CountRoom;
use crate::page_alloc::store::{Store, zeroed as zeroes};
use crate::platform::FramePlatform;
use crate::rank::Rank;
use crate::sync::{SpinLock, Stack};

impl<'p, P: FramePlatform> PageAllocator<'p, P> {
    /// Takes over the memory in `ranges`, which are in ascending order. All that the tables do not need is
    /// free afterwards.
    ///
    /// # Safety
    /// Invariant 1 starts here: from this call on, only this allocator uses the memory in `ranges`, and it
    /// writes to it. No other allocator has any of it. Where a range says that it is zeroed, it reads as zero
    /// now. Callers free to the allocator that they allocated from: with different direct maps, two allocators
    /// may use the same numbers for different memory.
    ///
    /// # Errors
    /// [`InitError`].
    pub unsafe fn new(
        platform: &'p P,
        ranges: &[MemoryRange],
        config: AllocatorConfig,
    ) -> Result<Self, InitError> {
        // SAFETY: invariant 1: the caller hands the memory over, and no more comes later.
        unsafe { Self::with_later(platform, ranges, &[], config) }
    }

    /// [`Self::new`] for a machine that may add the memory in `later`, in ascending order, after start-up
    /// ([`PageAllocator::add_memory`]). It is not touched before. Its records take 1.6 KiB for each 2 MiB.
    ///
    /// # Safety
    /// As for [`Self::new`]. The memory in `later` is handed over by [`PageAllocator::add_memory`].
    ///
    /// # Errors
    /// [`InitError`].
    pub unsafe fn with_later(
        platform: &'p P,
        ranges: &[MemoryRange],
        later: &[MemoryRange],
        config: AllocatorConfig,
    ) -> Result<Self, InitError> {
        if ranges.iter().all(|range| range.frames.count == 0) {
            return Err(InitError::NoMemory);
        }
        if later.is_empty() {
            return Self::start(platform, ranges, 0, &config);
        }
        Self::start_merged(platform, ranges, later, &config)
    }

    /// A function of its own, since most machines need no stack for its array.
    #[inline(never)]
    fn start_merged(
        platform: &'p P,
        ranges: &[MemoryRange],
        later: &[MemoryRange],
        config: &AllocatorConfig,
    ) -> Result<Self, InitError> {
        let mut all = [NO_RANGE; MAX_RANGES];
        let (count, late) = merge(ranges, later, &mut all)?;
        Self::start(platform, &all[..count], late, config)
    }

    /// Takes over ranges, of which `late` has a bit for each that is not there yet.
    #[inline(never)]
    fn start(
        platform: &'p P,
        ranges: &[MemoryRange],
        late: u64,
        config: &AllocatorConfig,
    ) -> Result<Self, InitError> {
        let is_late = |index: usize| late >> index & 1 == 1;
        let nodes = check(platform, ranges)?;
        let mut boot = BootMemory::new(platform);
        for (index, range) in ranges.iter().enumerate() {
            let usable = if is_late(index) { FrameRange::new(range.frames.start, 0) } else { range.frames };
            boot.add(usable, range.node, range.zeroed)?;
        }
        let layout = Layout::new(ranges, late, nodes, config);
        let tables = layout.build_tables(&mut boot, platform, config)?;
        // Not `?`, which would need the stack of a second allocator.
        let mut made = Self::of_tables(platform, tables, config);
        if let Ok(allocator) = &mut made {
            allocator.adopt(&layout, late, &boot);
        }
        made
    }

    /// Takes over what the tables left of the ranges.
    #[inline(never)]
    fn adopt(&mut self, layout: &Layout<'_>, late: u64, boot: &BootMemory<'_, P>) {
        let is_late = |index: usize| late >> index & 1 == 1;
        mark_holes(&self.frames().memmap, layout.ranges);
        for (index, range) in layout.ranges.iter().enumerate() {
            if is_late(index) {
                self.leave_out(layout, range);
            }
        }
        for (index, range) in layout.ranges.iter().enumerate() {
            if !is_late(index) {
                *self.present.get_mut() += range.frames.count;
                self.adopt_range(layout, range, boot.taken(index));
            }
        }
        self.update_marks();
    }

    /// An allocator with these tables and no memory.
    #[inline(never)]
    fn of_tables(platform: &'p P, tables: Tables, config: &AllocatorConfig) -> Result<Self, InitError> {
        let Tables { memmap, zones, placement, lists, stats } = tables;
        let frames = Frames {
            platform,
            memmap,
            clearer: Clearer::new(platform, config.clear.as_ref()).map_err(InitError::BadKernel)?,
            scheme: config.scheme(),
            #[cfg(feature = "published")]
            guard: guarded::guard_of::<P>(config.lists),
            bad: AtomicU64::new(0),
            stats,
        };
        let store = Store {
            frames,
            zones,
            group_by_mobility: config.group_by_mobility,
            zeroes: config.zeroes,
            count_room: SpinLock::new(Rank::CountRoom, CountRoom::default()),
        };
        let counts = MapCounts {
            requests: Requests { lists: Lists { store, cpus: lists }, placement },
            deferred: SpinLock::new(Rank::DeferredSplits, DeferredSplits::default()),
            returned_huge: Stack::new(),
        };
        let (present, min_free) = (AtomicU64::new(0), AtomicU64::new(BY_RULE));
        Ok(Self { counts, present, min_free, reserved: 0, tables: AtomicU64::new(0) })
    }

    /// Takes the blocks of a range that is not there yet out of their pools, and marks their records absent.
    fn leave_out(&self, layout: &Layout<'_>, range: &MemoryRange) {
        let whole = whole_blocks(range.frames);
        for number in (whole.0.0..whole.1.0).map(BlockNumber) {
            self.take_from_pool(layout, range.node, number);
        }
        let blocks = range.frames.by_block().map(|piece| piece.start.block());
        blocks.for_each(|number| self.frames().memmap.block(number).set_state(BlockState::Absent));
    }

    /// Takes a block out of the pool that spans it, if one does.
    fn take_from_pool(&self, layout: &Layout<'_>, node: u8, number: BlockNumber) {
        let zone = &self.store().zones[layout.zone_of(number.first_frame(), node)];
        if let Some(pool) = zone.pools.iter().find(|pool| pool.lock(self.platform()).spans(number)) {
            pool.lock(self.platform()).reserve(number, 1);
            zone.add_free(-(BLOCK_FRAMES as i64));
            zone.managed.fetch_sub(BLOCK_FRAMES as u64, Ordering::Relaxed);
        }
    }

    /// Frees what the tables left of a range. Its whole blocks are in their pools already: those with tables
    /// are taken out, and the edges become blocks in small pieces.
    fn adopt_range(&mut self, layout: &Layout<'_>, range: &MemoryRange, taken: FrameRange) {
        self.reserved += taken.count;
        let (start, end) = (range.frames.start.add(taken.count), range.frames.end());
        let whole = whole_blocks(range.frames);
        for number in (whole.0.0..whole.1.0).map(BlockNumber) {
            if number.first_frame() >= start {
                break;
            }
            self.take_from_pool(layout, range.node, number);
            self.frames().memmap.block(number).set_state(BlockState::Metadata);
            self.store().zones[layout.zone_of(number.first_frame(), range.node)]
                .areas
                .set_whole(number, false);
        }
        let up = Frame(start.0.next_multiple_of(BLOCK_FRAMES as u64)).min(end);
        self.reserved += self.adopt_edge(layout, range, FrameRange::new(start, up.0 - start.0));
        let down = end.block().first_frame().max(up);
        self.reserved += self.adopt_edge(layout, range, FrameRange::new(down, end.0 - down.0));
    }

    /// Makes part of a block usable in small pieces, never whole; how many of its frames stay out of use.
    fn adopt_edge(&self, layout: &Layout<'_>, range: &MemoryRange, frames: FrameRange) -> u64 {
        if frames.count == 0 {
            return 0;
        }
        let number = frames.start.block();
        let block = self.frames().memmap.block(number);
        let zone = &self.store().zones[layout.zone_of(frames.start, range.node)];
        let (start, count) = (frames.start.index_in_block(), frames.count as usize);
        let known = block.state() == BlockState::Small;
        if known && block.zone() != usize::from(zone.number) {
            return frames.count;
        }
        block.lock(self.platform());
        // A block that two ranges fill is in no pool: one frame stays out of use, so it never looks whole.
        let fills = known && usize::from(block.capacity.load(Ordering::Relaxed)) + count == BLOCK_FRAMES;
        let (count, frames) = if fills {
            (count - 1, FrameRange::new(frames.start, frames.count - 1))
        } else {
            (count, frames)
        };
        let zeroed = range.zeroed && self.store().zeroes.remember;
        if known {
            self.extend_small(block, start, count);
            let more = if zeroed { FrameMask::run(start, count) } else { FrameMask::EMPTY };
            zeroes::change(zone, block, block.zeroed().union(more));
        } else {
            let missing = FrameMask::ALL.without(FrameMask::run(start, count));
            self.store().make_small(zone, number, block, missing, zeroed);
            for (start, count) in missing.runs() {
                block.columns().inspect(|columns| columns.set_states(start, count, FrameState::RESERVED));
            }
        }
        self.store().relist(zone, number, block);
        block.unlock(self.platform());
        zone.managed.fetch_add(frames.count, Ordering::Relaxed);
        zone.add_free(count as i64);
        fills.into()
    }

    /// Adds the frames of a second range to a block that two ranges share.
    fn extend_small(&self, block: &Block, start: usize, count: usize) {
        block.used.remove_run(start, count);
        block.held.remove_run(start, count);
        block.columns().inspect(|columns| columns.set_states(start, count, FrameState::UNKNOWN));
        block.capacity.fetch_add(count as u16, Ordering::Relaxed);
        block.free.fetch_add(count as u16, Ordering::Relaxed);
        block.free_order.store(FrameMask::ALL.without(block.used.load()).largest_group(), Ordering::Relaxed);
    }
}

/// The first whole block of a run of frames, and the one after its last.
pub(super) fn whole_blocks(frames: FrameRange) -> (BlockNumber, BlockNumber) {
    let first = frames.start.0.div_ceil(BLOCK_FRAMES as u64) as u32;
    let end = frames.end().block().0;
    (BlockNumber(first), BlockNumber(end.max(first)))
}

const NO_RANGE: MemoryRange = MemoryRange { frames: FrameRange::new(Frame(0), 0), node: 0, zeroed: false };

/// Writes the present and the later ranges to one ascending array. Returns how many there are, and a bit for
/// each later range.
fn merge(
    ranges: &[MemoryRange],
    later: &[MemoryRange],
    all: &mut [MemoryRange; MAX_RANGES],
) -> Result<(usize, u64), InitError> {
    let (mut count, mut late) = (0, 0);
    let (mut here, mut there) = (ranges.iter().peekable(), later.iter().peekable());
    loop {
        let is_late = match (here.peek(), there.peek()) {
            (Some(here), Some(there)) => there.frames.start < here.frames.start,
            (None, Some(_)) => true,
            (Some(_), None) => false,
            (None, None) => return Ok((count, late)),
        };
        let Some(&range) = (if is_late { there.next() } else { here.next() }) else { continue };
        *all.get_mut(count).ok_or(InitError::TooManyRanges)? = range;
        late |= u64::from(is_late) << count;
        count += 1;
    }
}

const _: () = assert!(MAX_RANGES <= u64::BITS as usize);

/// Refuses what no machine can have; how many nodes it has, those of CPUs without memory included.
fn check<P: FramePlatform>(platform: &P, ranges: &[MemoryRange]) -> Result<usize, InitError> {
    if ranges.len() > MAX_RANGES {
        return Err(InitError::TooManyRanges);
    }
    let limit = MAX_PHYS_BYTES / FRAME_SIZE;
    for range in ranges {
        let end = range.frames.start.0.checked_add(range.frames.count);
        if end.is_none_or(|end| end > limit) {
            return Err(InitError::BeyondPhysical);
        }
    }
    if ranges.windows(2).any(|pair| pair[0].frames.end() > pair[1].frames.start) {
        return Err(InitError::Overlapping);
    }
    let cpus = platform.cpu_count();
    if cpus == 0 || cpus > MAX_CPUS {
        return Err(InitError::BadCpuCount);
    }
    let of_cpus = (0..cpus).map(|cpu| platform.node_of(CpuId(cpu as u32)));
    let last = ranges.iter().map(|range| range.node).chain(of_cpus).max().unwrap_or(0);
    if usize::from(last) < MAX_NODES { Ok(usize::from(last) + 1) } else { Err(InitError::BadNode) }
}

pub(super) fn last_block(frames: FrameRange) -> BlockNumber {
    Frame(frames.end().0 - 1).block()
}

/// Marks records between ranges absent, and those at a range's edge as metadata until the edge is adopted.
/// Visits only blocks that share a section with memory, since no others have records.
fn mark_holes(memmap: &MemMap, ranges: &[MemoryRange]) {
    let section_end = |block: u32| (block / SECTION_BLOCKS as u32 + 1) * SECTION_BLOCKS as u32;
    let present = || ranges.iter().filter(|range| range.frames.count > 0);
    for (range, next) in present().zip(present().skip(1)) {
        let (from, to) = (last_block(range.frames).0 + 1, next.frames.start.block().0);
        let near_start = from..to.min(section_end(from));
        let near_end = (to - to % SECTION_BLOCKS as u32).max(near_start.end)..to;
        for number in near_start.chain(near_end) {
            if let Some(block) = memmap.get(BlockNumber(number)) {
                block.set_state(BlockState::Absent);
            }
        }
    }
    for range in present() {
        for edge in [range.frames.start, range.frames.end()] {
            if edge.index_in_block() != 0 {
                memmap.block(edge.block()).set_state(BlockState::Metadata);
            }
        }
    }
}
