//! All open handlers: which are to be woken, and which have ranges of a space that is forked.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::handler::Handler;
use crate::errno::Errno;
use crate::files::events::Waiters;
use crate::memory::list;
use crate::memory::manager::Space;
use crate::sync::Mutex;

/// An open handler, as long as it can be read.
struct Entry {
    handler: Weak<Handler>,
    /// The address of the word that Quire changes when there is something new to read.
    word: usize,
    /// Kept apart from the handler, whose last reference must not go while Quire wakes.
    readers: Arc<Waiters>,
}

static ENTRIES: Mutex<Vec<Entry>> = Mutex::new(Vec::new());
/// How many entries there are, for those who find none.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Adds a handler.
///
/// # Errors
/// [`Errno::ENOMEM`].
pub(super) fn add(handler: Weak<Handler>, word: &AtomicU32, readers: Arc<Waiters>) -> Result<(), Errno> {
    let mut entries = ENTRIES.lock();
    entries.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    entries.push(Entry { handler, word: core::ptr::from_ref(word).addr(), readers });
    COUNT.store(entries.len(), Ordering::Relaxed);
    Ok(())
}

/// Forgets a handler, if it was added.
pub(super) fn remove(readers: &Arc<Waiters>) {
    let mut entries = ENTRIES.lock();
    // A handler has one entry.
    let gone = entries
        .iter()
        .position(|entry| Arc::ptr_eq(&entry.readers, readers))
        .map(|at| entries.swap_remove(at));
    COUNT.store(entries.len(), Ordering::Relaxed);
    drop(entries);
    drop(gone);
}

/// Wakes the readers of the handler with this word: Quire calls [`quire::platform::Platform::wake`] on it.
pub fn notify(word: &AtomicU32) {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return;
    }
    let word = core::ptr::from_ref(word).addr();
    let readers = ENTRIES.lock().iter().find(|entry| entry.word == word).map(|entry| entry.readers.clone());
    if let Some(readers) = readers {
        readers.notify();
    }
}

/// Gives the ranges of a new address space their handlers. The child has not run yet.
///
/// # Errors
/// [`Errno::ENOMEM`].
pub fn after_fork(parent: &Space, child: &Arc<Space>) -> Result<(), Errno> {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return Ok(());
    }
    // The end of a handler takes the lock. So under it there are no references that could be the last ones.
    let handlers = list::collect(ENTRIES.lock().iter().map(|entry| entry.handler.clone()))?;
    let mut left = handlers.iter().filter_map(Weak::upgrade);
    left.try_for_each(|handler| if handler.is_of(parent) { handler.settle(child) } else { Ok(()) })
}
