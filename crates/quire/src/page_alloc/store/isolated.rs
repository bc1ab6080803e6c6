//! Isolated blocks of a zone: a range that one task is about to take as a whole.
//!
//! While blocks are isolated, none of their frames is allocated. Frames in use stay in use; when freed, they
//! stay in their blocks. A block that becomes entirely free is *collected*: it does not go back to its pool.
//!
//! # Protocol
//!
//! Three structures allocate frames, and the range is written to each, in this order: here, for a search that
//! holds a block's lock and is about to take from it; to each shard's index, which no longer lists such
//! blocks; to the pool, which gives up its free ones. Then each block's lock is taken and given back once: a
//! search that held it before is done, and one that takes it later sees the range here. From then on only the
//! per-CPU lists, which are drained, can have frames of the range.
//!
//! A block is collected exactly once, since none is allocated: a free one under the pool's lock when it is
//! isolated, any other when it is put into the pool. A mark in its record says so, under the pool's lock.
//! When all are collected, the range is free and belongs to the task that isolated it.
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};

use crate::addr::BlockNumber;

/// In the link of a collected block's record.
pub(in crate::page_alloc) const COLLECTED: u32 = u32::MAX;

/// The range of one zone.
#[derive(Default)]
pub(in crate::page_alloc) struct Isolated {
    first: AtomicU32,
    end: AtomicU32,
    /// Frames that count as free and are not allocated.
    pub(in crate::page_alloc) aside: AtomicI64,
    taken: AtomicBool,
    /// The block at which the next search for a single one to empty starts, and the frames to move that end it.
    pub(in crate::page_alloc) next: AtomicU32,
    pub(in crate::page_alloc) enough: AtomicU64,
}

impl Isolated {
    /// Whether a block is isolated. Under its lock, or as a hint.
    #[inline]
    pub(in crate::page_alloc) fn contains(&self, number: BlockNumber) -> bool {
        let end = self.end.load(Ordering::Acquire);
        number.0 < end && number.0 >= self.first.load(Ordering::Relaxed)
    }

    /// Takes the right to isolate blocks of the zone, unless another task has it.
    pub(in crate::page_alloc) fn try_take(&self) -> bool {
        !self.taken.load(Ordering::Relaxed) && !self.taken.swap(true, Ordering::AcqRel)
    }

    /// Gives that up.
    pub(in crate::page_alloc) fn give_back(&self) {
        debug_assert_eq!(self.end.load(Ordering::Relaxed), 0);
        self.taken.store(false, Ordering::Release);
    }

    /// Names the blocks, or none.
    pub(in crate::page_alloc) fn set(&self, first: BlockNumber, blocks: u32) {
        if blocks == 0 {
            self.end.store(0, Ordering::Release);
        }
        self.first.store(first.0, Ordering::Relaxed);
        self.aside.store(0, Ordering::Relaxed);
        if blocks > 0 {
            self.end.store(first.0 + blocks, Ordering::Release);
        }
    }
}
