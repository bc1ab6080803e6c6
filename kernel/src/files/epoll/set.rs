//! The set.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use super::Report;
use super::item::{Item, Ready};
use crate::errno::Errno;
use crate::files::events::{ALWAYS, Events, READABLE, Waiters, Watcher};
use crate::files::open::{Closing, File, OpenFile};
use crate::memory::list;
use crate::sync::Mutex;

/// A file, by its address, and the descriptor: one descriptor may stand for several files in turn.
type Key = (usize, u64);

/// How deep sets may contain each other, as in Linux.
const MOST_DEPTH: u32 = 4;

/// A set of files.
pub struct Epoll {
    inner: Arc<Inner>,
}

/// The part that files know of.
struct Inner {
    items: Mutex<BTreeMap<Key, Arc<Item>>>,
    ready: Arc<Ready>,
}

fn key(descriptor: u64, file: &OpenFile) -> Key {
    (address(file), descriptor)
}

fn address(file: &OpenFile) -> usize {
    core::ptr::from_ref(file).addr()
}

impl Epoll {
    /// An empty set.
    pub fn new() -> Self {
        Self { inner: Arc::new(Inner { items: Mutex::default(), ready: Arc::default() }) }
    }

    /// Adds a file (`EPOLL_CTL_ADD`).
    ///
    /// # Errors
    /// [`Errno::EEXIST`]; [`Errno::EPERM`] for a file that is always ready; [`Errno::ELOOP`] for a set that contains
    /// this one, or is nested too deeply; [`Errno::ENOMEM`].
    pub fn add(&self, descriptor: u64, file: &Arc<OpenFile>, asked: u32, data: u64) -> Result<(), Errno> {
        let waiters = file.file().waiters().ok_or(Errno::EPERM)?;
        if let Some(other) = file.file_as::<Self>() {
            other.inner.check_nesting(&self.inner, MOST_DEPTH)?;
        }
        let item = Item::new(&self.inner.ready, file, asked | ALWAYS, data);
        {
            let mut items = self.inner.items.lock();
            let key = key(descriptor, file);
            if items.contains_key(&key) {
                return Err(Errno::EEXIST);
            }
            self.inner.ready.drop_removed(items.len());
            // A place for each, also where those that are on the list go before they are taken off it.
            self.inner.ready.items.lock().try_reserve(items.len() + 1).map_err(|_| Errno::ENOMEM)?;
            items.insert(key, item.clone());
        }
        let watcher: Arc<dyn Watcher> = item.clone();
        let inner: Weak<dyn Closing> = Arc::downgrade(&self.inner) as Weak<dyn Closing>;
        if let Err(errno) = file.tell_closing(inner).and_then(|()| waiters.watch(watcher)) {
            self.inner.take(descriptor, file);
            return Err(errno);
        }
        report_now(&item);
        Ok(())
    }

    /// Changes what is asked of a file (`EPOLL_CTL_MOD`).
    ///
    /// # Errors
    /// [`Errno::ENOENT`].
    pub fn change(&self, descriptor: u64, file: &OpenFile, asked: u32, data: u64) -> Result<(), Errno> {
        let item = self.inner.items.lock().get(&key(descriptor, file)).cloned().ok_or(Errno::ENOENT)?;
        item.change(asked | ALWAYS, data);
        report_now(&item);
        Ok(())
    }

    /// Removes a file (`EPOLL_CTL_DEL`).
    ///
    /// # Errors
    /// [`Errno::ENOENT`].
    pub fn remove(&self, descriptor: u64, file: &OpenFile) -> Result<(), Errno> {
        let item = self.inner.take(descriptor, file).ok_or(Errno::ENOENT)?;
        // It may be on the list.
        item.change(0, 0);
        unwatch(file, item);
        Ok(())
    }

    /// Takes up to `most` reports.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn take_reports(&self, most: usize) -> Result<Vec<Report>, Errno> {
        let ready = &self.inner.ready.items;
        let candidates = ready.lock().len();
        let mut reports = Vec::new();
        reports.try_reserve_exact(most.min(candidates)).map_err(|_| Errno::ENOMEM)?;
        for _ in 0..candidates {
            if reports.len() == most {
                break;
            }
            // The list's lock is not held here: a file's lock comes first.
            let Some(item) = ready.lock().pop_front() else { break };
            reports.extend(item.take_report());
        }
        // Another task may have found the list empty meanwhile. If nothing is ready any more, it takes the items off.
        if !reports.is_empty() && !ready.lock().is_empty() {
            self.inner.ready.waiters.notify();
        }
        Ok(reports)
    }
}

/// Puts an item on the list if its file is ready already.
fn report_now(item: &Item) {
    if item.events() != 0 {
        item.notice();
    }
}

fn unwatch(file: &OpenFile, item: Arc<Item>) {
    if let Some(waiters) = file.file().waiters() {
        let watcher: Arc<dyn Watcher> = item;
        waiters.unwatch(&watcher);
    }
}

impl Inner {
    fn take(&self, descriptor: u64, file: &OpenFile) -> Option<Arc<Item>> {
        self.items.lock().remove(&key(descriptor, file))
    }

    /// Fails if this set contains `other`, or has too many sets below it.
    fn check_nesting(&self, other: &Inner, depth: u32) -> Result<(), Errno> {
        if core::ptr::eq(self, other) || depth == 0 {
            return Err(Errno::ELOOP);
        }
        let items = list::collect(self.items.lock().values().cloned())?;
        for file in items.iter().filter_map(|item| item.file()) {
            if let Some(set) = file.file_as::<Epoll>() {
                set.inner.check_nesting(other, depth - 1)?;
            }
        }
        Ok(())
    }
}

impl Closing for Inner {
    /// A file of the set is gone.
    fn closing(&self, file: &OpenFile) {
        let keys = (address(file), 0)..=(address(file), u64::MAX);
        loop {
            let mut items = self.items.lock();
            let Some(key) = items.range(keys.clone()).map(|(key, _)| *key).next() else { return };
            let item = items.remove(&key);
            drop(items);
            if let Some(item) = item {
                unwatch(file, item);
            }
        }
    }
}

impl File for Epoll {
    fn is_seekable(&self) -> bool {
        false
    }

    fn poll(&self) -> Events {
        let candidates = list::collect(self.inner.ready.items.lock().iter().cloned());
        // Without memory it is not known: the program asks for reports, and may get none.
        let Ok(candidates) = candidates else { return READABLE };
        if candidates.iter().any(|item| item.events() != 0) { READABLE } else { 0 }
    }

    fn waiters(&self) -> Option<&Waiters> {
        Some(&self.inner.ready.waiters)
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        let items = core::mem::take(&mut *self.inner.items.lock());
        for item in items.into_values() {
            if let Some(file) = item.file() {
                unwatch(&file, item);
            }
        }
        // Items and the list keep each other alive.
        let listed = core::mem::take(&mut *self.inner.ready.items.lock());
        drop(listed);
    }
}
