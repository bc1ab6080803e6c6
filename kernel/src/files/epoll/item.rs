//! A file of a set.

use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use linux_raw_sys::general as abi;

use super::Report;
use crate::files::events::{Events, Waiters, Watcher};
use crate::files::open::OpenFile;
use crate::sync::Mutex;

/// The items that may be ready, and what waits for them.
#[derive(Default)]
pub(super) struct Ready {
    pub(super) items: Mutex<VecDeque<Arc<Item>>>,
    pub(super) waiters: Waiters,
}

impl Ready {
    /// Takes items off the list that are not in the set any more, if it has many more items than the set.
    pub(super) fn drop_removed(&self, most: usize) {
        let listed = self.items.lock().len();
        for _ in 0..if listed > 2 * most { listed } else { 0 } {
            let Some(item) = self.items.lock().pop_front() else { return };
            item.queued.store(false, Ordering::Release);
            if item.is_wanted() {
                item.queue();
            }
        }
    }
}

/// A file of a set, with what is asked of it.
pub(super) struct Item {
    this: Weak<Item>,
    ready: Arc<Ready>,
    file: Weak<OpenFile>,
    asked: AtomicU32,
    data: AtomicU64,
    queued: AtomicBool,
}

/// The bits that are no events.
const OPTIONS: u32 = abi::EPOLLET | abi::EPOLLONESHOT | abi::EPOLLWAKEUP | abi::EPOLLEXCLUSIVE;

impl Item {
    pub(super) fn new(ready: &Arc<Ready>, file: &Arc<OpenFile>, asked: u32, data: u64) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            ready: ready.clone(),
            file: Arc::downgrade(file),
            asked: AtomicU32::new(asked),
            data: AtomicU64::new(data),
            queued: AtomicBool::new(false),
        })
    }

    pub(super) fn change(&self, asked: u32, data: u64) {
        self.data.store(data, Ordering::Relaxed);
        self.asked.store(asked, Ordering::Release);
    }

    pub(super) fn file(&self) -> Option<Arc<OpenFile>> {
        self.file.upgrade()
    }

    /// Whether it is in the set: its file is open and was not removed.
    fn is_wanted(&self) -> bool {
        self.asked.load(Ordering::Acquire) != 0 && self.file.strong_count() > 0
    }

    /// What there is to report now.
    pub(super) fn events(&self) -> Events {
        self.events_of(self.asked.load(Ordering::Acquire))
    }

    fn events_of(&self, asked: u32) -> Events {
        let asked = asked & !OPTIONS;
        if asked == 0 {
            // A one-shot item that has been reported, or one that was removed.
            return 0;
        }
        self.file().map_or(0, |file| file.file().poll() & asked)
    }

    /// Puts it on the list, unless it is there.
    pub(super) fn queue(&self) {
        if let Some(this) = self.this.upgrade()
            && !self.queued.swap(true, Ordering::AcqRel)
        {
            // The list has a place for each item of the set.
            self.ready.items.lock().push_back(this);
        }
    }

    /// It was taken off the list. Returns what to report, and puts it back if that may be repeated.
    pub(super) fn take_report(&self) -> Option<Report> {
        self.queued.store(false, Ordering::Release);
        loop {
            let asked = self.asked.load(Ordering::Acquire);
            let report = (self.events_of(asked), self.data.load(Ordering::Relaxed));
            if report.0 == 0 {
                return None;
            }
            if asked & abi::EPOLLONESHOT == 0 {
                if asked & abi::EPOLLET == 0 {
                    self.queue();
                }
                return Some(report);
            }
            // Another task may have taken it off the list too: one of them reports it.
            let done = asked & OPTIONS;
            if self.asked.compare_exchange(asked, done, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return Some(report);
            }
        }
    }
}

impl Watcher for Item {
    fn notice(&self) {
        self.queue();
        self.ready.waiters.notify();
    }

    fn set(&self) -> Option<&Waiters> {
        Some(&self.ready.waiters)
    }
}
