//! Sections of code that a task can wait for, without keeping others out of the next section.
//!
//! A reader of data that may change enters a section around it: it adds one to the slot of its current CPU,
//! and subtracts one at the end. A writer waits for a *grace period*, after which no reader is still in a
//! section that it entered before. Readers that enter later see what was stored before it.
//!
//! Each slot has two counts. New sections are counted in the *current* one. A grace period makes the other
//! one current, so that the first drains however many sections begin meanwhile. A reader may read which count
//! is current before this switch, and add to it afterwards. A later grace period finds that section in the
//! count that is not current; so it waits for both counts, one after the other. (As SRCU does: McKenney,
//! "Sleepable Read-Copy Update", 2006. Here a section subtracts where it added, so each slot stands alone.)
//!
//! All accesses are sequentially consistent: the addition comes before every load of the section, and a grace
//! period that does not see it comes before the addition.

use super::{Pinned, Rank, RawLock};
use crate::atomic::{AtomicU32, Ordering};
use crate::limits::READER_SLOTS;
use crate::platform::FramePlatform;

#[derive(Default)]
#[repr(align(64))]
struct SectionCounts([AtomicU32; 2]);

/// Sections of one kind, and grace periods that wait for them.
#[derive(Default)]
pub struct Sections {
    /// Taken by the writer that waits for a grace period: one at a time.
    waiting: RawLock,
    current: AtomicU32,
    slots: [SectionCounts; READER_SLOTS],
}

impl Sections {
    /// No section is entered.
    pub const fn new() -> Self {
        Self {
            waiting: RawLock::new(),
            current: AtomicU32::new(0),
            slots: [const { SectionCounts([const { AtomicU32::new(0) }; 2]) }; READER_SLOTS],
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

    /// Waits until every section that was entered before the call has ended.
    ///
    /// Precondition: a task in no section.
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
