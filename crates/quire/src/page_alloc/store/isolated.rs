//! The blocks of a zone that are kept for somebody who is about to take all of them in a row.
//!
//! While blocks are isolated nobody is handed any of their frames. Frames that are used stay so, and may be freed by their
//! owners at any moment; they stay where they are then: a block that comes to be entirely free is *collected*, in
//! place of going back to its pool.
//!
//! # Protocol
//!
//! The range is written where each of the three that hand out frames looks, in this order: here, for whoever has a block's
//! lock and is about to take from it; in each shard's index, which lists no such block any more; in the pool, which
//! gives the free ones away. Then every block's lock is taken and given back once: whoever took from it before is done, and
//! whoever takes it after sees what stands here. From then on no frame of the range is handed out but from the per-CPU lists,
//! which may have some from before and are drained.
//!
//! A block is collected exactly once, since nobody takes one: the free ones under the pool's lock when they are isolated, others
//! when they are put into the pool. What is collected carries a mark in its record, under the pool's lock. When as many are
//! collected as there are, the range is free and nobody else's.
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};

use crate::addr::BlockNumber;

/// In the link of a collected block's record.
pub(in crate::page_alloc) const COLLECTED: u32 = u32::MAX;

/// The range of one zone.
#[derive(Default)]
pub(in crate::page_alloc) struct Isolated {
    first: AtomicU32,
    end: AtomicU32,
    /// Frames that count as free, and that nobody can have.
    pub(in crate::page_alloc) aside: AtomicI64,
    taken: AtomicBool,
}

impl Isolated {
    /// Whether a block is isolated. Under its lock, or as a hint.
    #[inline]
    pub(in crate::page_alloc) fn contains(&self, number: BlockNumber) -> bool {
        let end = self.end.load(Ordering::Acquire);
        number.0 < end && number.0 >= self.first.load(Ordering::Relaxed)
    }

    /// Becomes the one who isolates blocks of the zone, unless somebody is.
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
