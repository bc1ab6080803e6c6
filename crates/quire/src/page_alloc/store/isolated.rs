//! Isolated blocks of a zone: a range that one task is about to take as a whole.
//!
//! While blocks are isolated, none of their frames is allocated. Frames in use stay in use; when freed, they
//! stay in their blocks. A block that becomes entirely free is *collected*: it does not go back to its pool.
//!
//! # Protocol
//!
//! Three structures allocate frames, and the range is written to each, in this order: to the pool, which gives
//! up its free ones, some at a time; here, for a search that holds a block's lock and is about to take from it;
//! to each shard's index, which no longer lists such blocks. Then each block's lock is taken and given back
//! once: a search that held it before is done, and one that takes it later sees the range here. From then on
//! only the per-CPU lists, which are drained, can have frames of the range. The pool comes first, and last where
//! the range is given back: a search that splits blocks of the pool never finds one that it may not take from.
//!
//! A block is collected exactly once, since none is allocated: a free one under the pool's lock when it is
//! isolated, any other when it is put into the pool. A mark in its record says so, under the pool's lock.
//! When all are collected, the range is free and belongs to the task that isolated it. A collected block of
//! which a frame goes bad loses the mark and goes to the store in small pieces: the range is not whole then.
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::addr::BlockNumber;

/// In the link of a collected block's record.
pub(in crate::page_alloc) const COLLECTED: u32 = u32::MAX;

/// The range of one zone.
#[derive(Default)]
pub(in crate::page_alloc) struct Isolated {
    /// The first block in the upper half, the one after the last in the lower half. In one word, so that no
    /// search takes the begin of one range and the end of another for a range.
    range: AtomicU64,
    /// Frames that count as free and are not allocated.
    pub(in crate::page_alloc) aside: AtomicI64,
    taken: AtomicBool,
    pub(in crate::page_alloc) walk: Walk,
    /// The zone's free frames when a search found no more blocks that cost little.
    pub(in crate::page_alloc) barren_at: AtomicU64,
}

/// Where the search for single blocks to empty goes on. Changes under the right to isolate.
#[derive(Default)]
pub(in crate::page_alloc) struct Walk {
    next: AtomicU32,
    least: AtomicU16,
    most: AtomicU16,
    beyond: AtomicU16,
}

/// A pass over a zone's blocks. Zero in all is the start of a round.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::page_alloc) struct WalkState {
    /// The block that comes next.
    pub(in crate::page_alloc) next: u32,
    /// The fewest and most frames to move of the blocks that the pass shows.
    pub(in crate::page_alloc) least: u16,
    pub(in crate::page_alloc) most: u16,
    /// The fewest frames to move of a block that the pass left for later; 0 if there was none.
    pub(in crate::page_alloc) beyond: u16,
}

impl Walk {
    pub(in crate::page_alloc) fn load(&self) -> WalkState {
        let of = |field: &AtomicU16| field.load(Ordering::Relaxed);
        let next = self.next.load(Ordering::Relaxed);
        WalkState { next, least: of(&self.least), most: of(&self.most), beyond: of(&self.beyond) }
    }

    pub(in crate::page_alloc) fn store(&self, pass: WalkState) {
        self.next.store(pass.next, Ordering::Relaxed);
        self.least.store(pass.least, Ordering::Relaxed);
        self.most.store(pass.most, Ordering::Relaxed);
        self.beyond.store(pass.beyond, Ordering::Relaxed);
    }
}

impl Isolated {
    /// Whether a block is isolated. Under its lock, or as a hint.
    #[inline]
    pub(in crate::page_alloc) fn contains(&self, number: BlockNumber) -> bool {
        let range = self.range.load(Ordering::Acquire);
        number.0 < range as u32 && number.0 >= (range >> 32) as u32
    }

    /// Takes the right to isolate blocks of the zone, unless another task has it.
    pub(in crate::page_alloc) fn try_take(&self) -> bool {
        !self.taken.load(Ordering::Relaxed) && !self.taken.swap(true, Ordering::AcqRel)
    }

    /// Gives that up.
    pub(in crate::page_alloc) fn give_back(&self) {
        debug_assert_eq!(self.range.load(Ordering::Relaxed), 0);
        self.taken.store(false, Ordering::Release);
    }

    /// Names the blocks.
    pub(in crate::page_alloc) fn set(&self, first: BlockNumber, blocks: u32) {
        let end = first.0 + blocks;
        self.range.store(u64::from(first.0) << 32 | u64::from(end), Ordering::Release);
        self.aside.store(0, Ordering::Relaxed);
    }

    /// Names no block any more.
    pub(in crate::page_alloc) fn end(&self) {
        self.range.store(0, Ordering::Release);
    }
}
