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
use crate::task::sleep_lock::SleepLock;

/// A file, by its address, and the descriptor: one descriptor may stand for several files in turn.
type Key = (usize, u64);

/// How many sets may contain each other, each the next one, as in Linux.
const MOST_DEPTH: usize = 5;
/// On how many ways an event of a set may go through other sets: each is a call with spin locks held. Linux has limits
/// for each length of a way, from 500 for two sets on.
const MOST_WAYS: usize = 500;

/// Held while a set is added to another one: no other becomes part of a circle meanwhile.
static NESTING: SleepLock<()> = SleepLock::new(());

/// A set of files.
pub struct Epoll {
    inner: Arc<Inner>,
}

/// The part that files know of.
struct Inner {
    /// Held while a program adds, changes or removes a file, so that none changes an item that is removed meanwhile.
    changes: SleepLock<()>,
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
        let changes = SleepLock::new(());
        Self { inner: Arc::new(Inner { changes, items: Mutex::default(), ready: Arc::default() }) }
    }

    /// Adds a file (`EPOLL_CTL_ADD`).
    ///
    /// # Errors
    /// [`Errno::EEXIST`]; [`Errno::EPERM`] for a file that is always ready; [`Errno::ELOOP`] for a set that contains
    /// this one, or would be nested too deeply; [`Errno::EINVAL`] for one whose events would go too many ways;
    /// [`Errno::ENOMEM`].
    pub fn add(&self, descriptor: u64, file: &Arc<OpenFile>, asked: u32, data: u64) -> Result<(), Errno> {
        let Some(other) = file.file_as::<Self>() else {
            return self.insert(descriptor, file, asked, data);
        };
        let _nesting = NESTING.lock();
        let sets = other.inner.sets_below(&self.inner)?;
        self.insert(descriptor, file, asked, data)?;
        if sets.iter().any(|set| set.ready.waiters.ways(MOST_WAYS).count > MOST_WAYS) {
            // Unless another thread has removed it.
            self.remove(descriptor, file).ok();
            return Err(Errno::EINVAL);
        }
        Ok(())
    }

    fn insert(&self, descriptor: u64, file: &Arc<OpenFile>, asked: u32, data: u64) -> Result<(), Errno> {
        let waiters = file.file().waiters().ok_or(Errno::EPERM)?;
        let _changes = self.inner.changes.lock();
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
        let _changes = self.inner.changes.lock();
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
        let _changes = self.inner.changes.lock();
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

    /// This set and those that it contains, directly or not.
    ///
    /// # Errors
    /// [`Errno::ELOOP`] if `outer`, which shall contain this one, is among them, or if the sets around `outer` and those
    /// below this one were too many; [`Errno::ENOMEM`].
    fn sets_below(self: &Arc<Self>, outer: &Arc<Self>) -> Result<Vec<Arc<Self>>, Errno> {
        let above = 1 + outer.ready.waiters.ways(MOST_WAYS).depth;
        let (mut all, mut level) = (Vec::new(), list::collect([self.clone()])?);
        for _ in above..MOST_DEPTH {
            if level.iter().any(|set| Arc::ptr_eq(set, outer)) {
                return Err(Errno::ELOOP);
            }
            let mut next = Vec::new();
            for set in &level {
                let items = list::collect(set.items.lock().values().cloned())?;
                let files = items.iter().filter_map(|item| item.file());
                list::append(
                    &mut next,
                    files.filter_map(|file| Some(file.file_as::<Epoll>()?.inner.clone())),
                )?;
            }
            // Each set once, on however many ways it is reached.
            next.sort_unstable_by_key(Arc::as_ptr);
            next.dedup_by(|one, other| Arc::ptr_eq(one, other));
            list::append(&mut all, level)?;
            level = next;
        }
        if level.is_empty() { Ok(all) } else { Err(Errno::ELOOP) }
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
