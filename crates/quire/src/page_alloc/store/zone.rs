//! Zones: the memory of one node and one kind, its marks and its parts.

use core::ops::Range;
use core::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::addr::BlockNumber;
use crate::memmap::{BootSlice, MemMap};
use crate::page_alloc::request::gfp::{Contents, Mobility, Urgency, ZoneKind};
use crate::page_alloc::store::areas::Areas;
use crate::page_alloc::store::isolated::Isolated;
use crate::page_alloc::store::marks::ZoneMarks;
use crate::page_alloc::store::pool::Pool;
use crate::page_alloc::store::search::Search;
use crate::page_alloc::store::shard::Shard;
use crate::platform::FramePlatform;
use crate::sync::SpinLock;

/// A request for a run of whole blocks.
#[derive(Clone, Copy)]
pub(in crate::page_alloc) struct Wanted {
    pub(in crate::page_alloc) blocks: u32,
    /// The first block's number is a multiple of this power of two.
    pub(in crate::page_alloc) align: u32,
    /// The preferred contents.
    pub(in crate::page_alloc) contents: Contents,
    /// Whether locks may be waited for.
    pub(in crate::page_alloc) wait: bool,
}

/// Which whole blocks a search may split.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::page_alloc) enum SplitFrom {
    /// Those of an area, which are these.
    Area(Range<u32>),
    /// Those of areas that are tainted if the frames cannot move, or untainted if they can.
    Alike,
    /// All, but rather one of such an area.
    All,
}

/// A value on a cache line of its own.
#[repr(align(64))]
#[derive(Default)]
pub(in crate::page_alloc) struct OwnLine<T>(pub(in crate::page_alloc) T);

/// The memory of one node and one kind.
pub(in crate::page_alloc) struct Zone {
    pub(in crate::page_alloc) number: u8,
    pub(in crate::page_alloc) node: u8,
    pub(in crate::page_alloc) kind: ZoneKind,
    /// Frames that can be allocated, descriptor frames included. Only hotplug changes it.
    pub(in crate::page_alloc) managed: AtomicU64,
    /// Frames that are there, tables included; the marks follow from them.
    pub(in crate::page_alloc) present: AtomicU64,
    pub(in crate::page_alloc) marks: ZoneMarks,
    pub(in crate::page_alloc) pools: BootSlice<SpinLock<Pool>>,
    pub(in crate::page_alloc) shards: BootSlice<Shard>,
    /// Frames in the store. Changed once per batch.
    pub(in crate::page_alloc) free: OwnLine<AtomicI64>,
    /// Frames for whose magazines lists have booked room to park. A list keeps its booking, so this changes
    /// only when it parks more than ever, or less for some time.
    pub(in crate::page_alloc) booked: OwnLine<AtomicI64>,
    /// Free frames of blocks in small pieces known to be zero. Changed once per batch that has some.
    pub(in crate::page_alloc) pieces_zeroed: OwnLine<AtomicI64>,
    /// Frames that hold descriptors of blocks in small pieces. Changed once per block.
    pub(in crate::page_alloc) descriptor_frames: AtomicU64,
    /// The blocks of which no frame is allocated.
    pub(in crate::page_alloc) isolated: Isolated,
    /// The areas of 1 GiB with frames that cannot move.
    pub(in crate::page_alloc) areas: Areas,
}

impl Zone {
    /// Frames in the store.
    #[inline]
    pub(in crate::page_alloc) fn free_frames(&self) -> u64 {
        self.free.0.load(Ordering::Relaxed).max(0) as u64
    }

    /// Whether no frame became free since a search found no block that costs little. A hint: frames may have been
    /// freed and allocated since.
    pub(in crate::page_alloc) fn is_barren(&self) -> bool {
        self.free_frames() <= self.isolated.barren_at.load(Ordering::Relaxed)
    }

    /// Counts frames that entered the store (or left it, when negative).
    #[inline]
    pub(in crate::page_alloc) fn add_free(&self, frames: i64) {
        self.free.0.fetch_add(frames, Ordering::Relaxed);
    }

    /// Books room to park this many frames, of at most an eighth of the zone; returns whether there was room.
    pub(in crate::page_alloc) fn book(&self, frames: i64) -> bool {
        let room = self.managed.load(Ordering::Relaxed) as i64 / 8;
        let booked = self.booked.0.fetch_add(frames, Ordering::Relaxed) + frames <= room;
        if !booked {
            self.unbook(frames);
        }
        booked
    }

    pub(in crate::page_alloc) fn unbook(&self, frames: i64) {
        self.booked.0.fetch_sub(frames, Ordering::Relaxed);
    }

    /// How many frames a request may take above its mark: `min` for ordinary ones, half of it for atomic
    /// ones, zero for those that may use the whole reserve. A CPU asks once, before it takes a batch, so each
    /// of several CPUs may pass the mark by one batch.
    #[inline]
    pub(in crate::page_alloc) fn allowance(&self, urgency: Urgency, wanted_zone: ZoneKind) -> u64 {
        let kept = match urgency {
            Urgency::Ordinary => self.marks.min() + self.marks.low_reserve(wanted_zone),
            Urgency::Atomic | Urgency::Tables => self.marks.min() / 2 + self.marks.low_reserve(wanted_zone),
            Urgency::Reserve => 0,
        };
        let aside = self.isolated.aside.load(Ordering::Relaxed).max(0) as u64;
        self.free_frames().saturating_sub(kept + aside)
    }

    /// Takes a run of whole blocks, if possible of the wanted contents; returns whether it is all zero.
    pub(in crate::page_alloc) fn take_blocks<P: FramePlatform>(
        &self,
        platform: &P,
        wanted: Wanted,
    ) -> Option<(BlockNumber, bool)> {
        self.pools.iter().find_map(|pool| {
            let mut pool = if wanted.wait { pool.lock(platform) } else { pool.try_lock(platform)? };
            pool.take(wanted.blocks, wanted.align, wanted.contents)
        })
    }

    /// Calls `zero` with the index of each of these blocks, of which the caller just took all from the pool of
    /// their region, that is known to be zero.
    pub(in crate::page_alloc) fn zero_blocks_of<P: FramePlatform>(
        &self,
        platform: &P,
        first: BlockNumber,
        blocks: u32,
        mut zero: impl FnMut(u32),
    ) {
        for pool in self.pools.iter() {
            let pool = pool.lock(platform);
            if pool.spans(first) {
                return (0..blocks).filter(|&at| pool.was_zero(first.add(at))).for_each(&mut zero);
            }
        }
    }

    /// Takes one whole block to split, and returns its region's pool as well. `keep_some`: not from regions that
    /// have as few as [`crate::limits::WHOLE_BLOCKS_SHORT`] says.
    pub(in crate::page_alloc) fn take_block<P: FramePlatform>(
        &self,
        platform: &P,
        search: Search,
        keep_some: bool,
        among: SplitFrom,
    ) -> Option<(&SpinLock<Pool>, BlockNumber, bool)> {
        let movable = search.mobility == Mobility::Movable;
        let from_pools = |avoids: bool| {
            self.pools.iter().find_map(|lock| {
                let mut pool = if search.wait { lock.lock(platform) } else { lock.try_lock(platform)? };
                if keep_some && pool.is_short() {
                    return None;
                }
                let avoided = |block| avoids && self.areas.has_taint(block) == movable;
                let taken = match &among {
                    SplitFrom::Area(blocks) => pool.take_among(blocks, search.contents),
                    SplitFrom::Alike | SplitFrom::All => pool.take_outside(search.contents, avoided),
                };
                taken.map(|(number, zeroed)| (lock, number, zeroed))
            })
        };
        let taken = from_pools(true);
        if taken.is_none() && among == SplitFrom::All { from_pools(false) } else { taken }
    }

    /// Whether whole blocks are short in all regions, or in those whose locks are free if the search may not wait.
    pub(in crate::page_alloc) fn is_short<P: FramePlatform>(&self, platform: &P, wait: bool) -> bool {
        let mut pools = self
            .pools
            .iter()
            .filter_map(|pool| if wait { Some(pool.lock(platform)) } else { pool.try_lock(platform) });
        !pools.any(|pool| !pool.is_short())
    }

    /// Frees whole blocks into the pools of their regions, all or none known to be zero; collects isolated ones.
    pub(in crate::page_alloc) fn put_blocks<P: FramePlatform>(
        &self,
        platform: &P,
        memmap: &MemMap,
        first: BlockNumber,
        blocks: u32,
        zeroed: bool,
    ) {
        let (mut first, mut left) = (first, blocks);
        while left > 0 {
            let mut pools = self.pools.iter().map(|pool| pool.lock(platform));
            let Some(mut pool) = pools.find(|pool| pool.spans(first)) else {
                unreachable!("block {first:?} belongs to no region of its zone");
            };
            let here = left.min(pool.blocks_from(first));
            pool.put(memmap, first, here, zeroed);
            (first, left) = (first.add(here), left - here);
        }
    }

    /// How many blocks there are from `block` to the end of its region.
    pub(in crate::page_alloc) fn region_from<P: FramePlatform>(
        &self,
        platform: &P,
        block: BlockNumber,
    ) -> u32 {
        let mut pools = self.pools.iter().map(|pool| pool.lock(platform));
        pools.find(|pool| pool.spans(block)).map_or(1, |pool| pool.blocks_from(block))
    }

    /// Takes the lowest whole block that is not known to be zero.
    pub(in crate::page_alloc) fn take_stale_block<P: FramePlatform>(
        &self,
        platform: &P,
    ) -> Option<BlockNumber> {
        self.pools.iter().find_map(|pool| pool.lock(platform).take_stale())
    }

    /// Free frames of blocks in small pieces known to be zero.
    pub(in crate::page_alloc) fn zeroed_pieces(&self) -> u64 {
        self.pieces_zeroed.0.load(Ordering::Relaxed).max(0) as u64
    }

    pub(in crate::page_alloc) fn zeroed_blocks<P: FramePlatform>(&self, platform: &P) -> u64 {
        self.pools.iter().map(|pool| u64::from(pool.lock(platform).zeroed)).sum()
    }

    /// How many blocks it has.
    pub(in crate::page_alloc) fn blocks<P: FramePlatform>(&self, platform: &P) -> u32 {
        self.pools.iter().map(|pool| pool.lock(platform).region().1).sum()
    }

    pub(in crate::page_alloc) fn whole_blocks<P: FramePlatform>(&self, platform: &P) -> u64 {
        self.pools.iter().map(|pool| u64::from(pool.lock(platform).free)).sum()
    }
}
