//! When a refused request leaves its CPU's lists alone.
//!
//! A request of several frames that finds nothing gives frames of its CPU's lists back, and looks again. In a memory full
//! of holes that hardly ever helps, since what lies between those frames is in use; and each costs two hundred
//! instructions, half of them later, when its list needs another. So once it was in vain, some refused requests leave the
//! lists alone: one, then three, up to [`SCRAPE_REST`]. More free memory ends this rest, and so does a request
//! that giving back has served.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::limits::{BLOCK_FRAMES, SCRAPE_REST};

/// The rest of a CPU's lists. Plain loads and stores do: it belongs to the code that has the first level's lease.
pub(in crate::page_alloc) struct Rest {
    /// Refused requests until its end.
    left: AtomicU32,
    /// Refused requests of the next rest.
    next: AtomicU32,
    /// Frames in the stores when it began.
    free: AtomicU64,
}

impl Rest {
    pub(in crate::page_alloc) const fn new() -> Self {
        Self { left: AtomicU32::new(0), next: AtomicU32::new(1), free: AtomicU64::new(0) }
    }

    /// Whether this refused request is to leave the lists alone. `free` frames are in the stores of its zones.
    pub(in crate::page_alloc) fn holds(&self, free: u64) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        if left == 0 {
            return false;
        }
        if free > self.free.load(Ordering::Relaxed) + BLOCK_FRAMES as u64 {
            self.end();
            return false;
        }
        self.left.store(left - 1, Ordering::Relaxed);
        true
    }

    /// Giving back was in vain.
    pub(in crate::page_alloc) fn begin(&self, free: u64) {
        let next = self.next.load(Ordering::Relaxed);
        self.left.store(next, Ordering::Relaxed);
        self.next.store((2 * next + 1).min(SCRAPE_REST), Ordering::Relaxed);
        self.free.store(free, Ordering::Relaxed);
    }

    /// Giving back has helped, or might now.
    pub(in crate::page_alloc) fn end(&self) {
        self.left.store(0, Ordering::Relaxed);
        self.next.store(1, Ordering::Relaxed);
    }
}
