//! Waiting for several files at once.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use super::events::Watcher;
use super::open::OpenFile;
use crate::errno::Errno;
use crate::task::wait::WaitQueue;

/// A task that waits until one of its files changes.
struct Sleeper {
    changed: AtomicBool,
    queue: WaitQueue,
}

impl Watcher for Sleeper {
    fn notice(&self) {
        self.changed.store(true, Ordering::Release);
        self.queue.wake_all();
    }
}

/// The files that a sleeper watches, until this is dropped.
struct Watches<'f> {
    files: &'f [Arc<OpenFile>],
    watcher: Arc<dyn Watcher>,
}

impl<'f> Watches<'f> {
    fn new(files: &'f [Arc<OpenFile>], watcher: Arc<dyn Watcher>) -> Result<Self, Errno> {
        let watches = Self { files, watcher };
        for waiters in files.iter().filter_map(|file| file.file().waiters()) {
            waiters.watch(watches.watcher.clone())?;
        }
        Ok(watches)
    }
}

impl Drop for Watches<'_> {
    fn drop(&mut self) {
        for waiters in self.files.iter().filter_map(|file| file.file().waiters()) {
            waiters.unwatch(&self.watcher);
        }
    }
}

/// Sleeps until `scan` finds something about these files, or the time `deadline`; then returns `None`.
///
/// # Errors
/// [`Errno::EINTR`] when a signal comes first; [`Errno::ENOMEM`]; those of `scan`.
pub fn wait<T>(
    files: &[Arc<OpenFile>],
    deadline: Option<u64>,
    mut scan: impl FnMut() -> Result<Option<T>, Errno>,
) -> Result<Option<T>, Errno> {
    if let Some(found) = scan()? {
        return Ok(Some(found));
    }
    if deadline == Some(0) {
        return Ok(None);
    }
    let sleeper = Arc::new(Sleeper { changed: AtomicBool::new(true), queue: WaitQueue::new() });
    let _watches = Watches::new(files, sleeper.clone())?;
    loop {
        let changed = || sleeper.changed.swap(false, Ordering::AcqRel).then_some(());
        let woken = sleeper.queue.wait_until_deadline(deadline, changed)?;
        if let Some(found) = scan()? {
            return Ok(Some(found));
        }
        if woken.is_none() {
            return Ok(None);
        }
    }
}

/// The files of descriptors, each once or more.
pub type Files = Vec<Arc<OpenFile>>;
