//! Sections: stretches of code that a task can wait for, without keeping others out of the next one.
//!
//! A reader of something that may change meanwhile marks a section around it: one addition to the slot of the
//! CPU that it happens to run on, and one back. A writer lets a *grace period* pass first, after which no
//! reader is in a section any more that it entered before; readers that enter later see what was stored
//! before it.
//!
//! Each slot has two counts. New sections are counted in the one that is *current*; a grace period makes the
//! other one current, so that the first runs empty however many sections are entered meanwhile. A section
//! whose owner read which is current before that, and counts itself after, is one that a later grace period
//! finds in the count that is not current: that is why it waits for both, one after the other. (As SRCU does:
//! McKenney, "Sleepable Read-Copy Update", 2006. Here a section gives back the very count that it took, so
//! each slot can be judged alone.)
//!
//! All of it is sequentially consistent: the addition comes before every load of the section, and a grace
//! period that does not see it comes before the addition.

use super::{Pinned, Rank, RawLock};
use crate::atomic::{AtomicU32, Ordering};
use crate::limits::READER_SLOTS;
use crate::platform::FramePlatform;

#[repr(align(64))]
struct Slot([AtomicU32; 2]);

/// Sections of one kind, and grace periods that wait for them.
pub struct Sections {
    /// Taken by the writer that lets a grace period pass: one at a time.
    waiting: RawLock,
    current: AtomicU32,
    slots: [Slot; READER_SLOTS],
}

impl Default for Sections {
    fn default() -> Self {
        Self::new()
    }
}

impl Sections {
    /// No reader is in a section.
    pub const fn new() -> Self {
        Self {
            waiting: RawLock::new(),
            current: AtomicU32::new(0),
            slots: [const { Slot([const { AtomicU32::new(0) }; 2]) }; READER_SLOTS],
        }
    }

    /// Enters a section, which lasts until the guard is dropped. Any context. A reader in a section waits for
    /// no grace period, and for no task that does.
    #[inline]
    pub fn enter<P: FramePlatform>(&self, platform: &P) -> Section<'_> {
        let slot = Pinned::new(platform).cpu().index() % READER_SLOTS;
        let count = &self.slots[slot].0[self.current.load(Ordering::SeqCst) as usize % 2];
        count.fetch_add(1, Ordering::SeqCst);
        Section { count }
    }

    /// Waits until every section that was entered before the call is left.
    ///
    /// Precondition: a task, which is in no section.
    pub fn wait<P: FramePlatform>(&self, platform: &P) {
        self.waiting.lock(platform, Rank::Sections);
        let current = self.current.load(Ordering::SeqCst) as usize % 2;
        self.run_empty(platform, 1 - current);
        self.current.store(1 - current as u32, Ordering::SeqCst);
        self.run_empty(platform, current);
        self.waiting.unlock(platform, Rank::Sections);
    }

    fn run_empty<P: FramePlatform>(&self, platform: &P, which: usize) {
        for slot in &self.slots {
            while slot.0[which].load(Ordering::SeqCst) != 0 {
                platform.relax();
            }
        }
    }
}

/// A section, until dropped.
#[must_use = "the section ends when this is dropped"]
pub struct Section<'a> {
    count: &'a AtomicU32,
}

impl Drop for Section<'_> {
    #[inline]
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
    }
}
