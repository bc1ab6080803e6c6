//! How many references a file has, and how the last one is told apart (F2).
//!
//! A reference goes without a lock, unless it is the last one. A walk over the table makes more of them under
//! the table's lock. So a task whose reference seems to be the last one takes that lock, and looks again *and
//! gives its reference back in one step*. If it looked first, the walk's reference could go in between, and
//! the count would fall to zero with the file still in the table.

use crate::atomic::{AtomicU64, Ordering};

/// A count of references, at first one.
#[derive(Debug)]
pub(super) struct References(AtomicU64);

impl References {
    pub(super) const fn one() -> Self {
        Self(AtomicU64::new(1))
    }

    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// The caller has one, or holds the lock of the table that has the file.
    pub(super) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Gives one back, unless it is the last; returns whether it did.
    pub(super) fn give_back_unless_last(&self) -> bool {
        let mut count = self.count();
        while count > 1 {
            match self.0.compare_exchange_weak(count, count - 1, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => count = now,
            }
        }
        false
    }

    /// Gives one back; returns whether it was the last.
    pub(super) fn give_back(&self) -> bool {
        let before = self.0.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "more references given back than taken");
        before == 1
    }

    /// Gives one back unless it is the last; returns whether it did. If not, `unlink` has taken the file out of
    /// the table that `lock` locks, so that the last reference stays the last.
    pub(super) fn give_back_or_unlink<G>(&self, lock: impl FnOnce() -> G, unlink: impl FnOnce(&G)) -> bool {
        if self.give_back_unless_last() {
            return true;
        }
        let table = lock();
        // A walk may have found the file just before.
        let gone = self.give_back_unless_last();
        if !gone {
            unlink(&table);
        }
        gone
    }
}
