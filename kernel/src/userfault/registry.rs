//! All open handlers: which are to be woken, and which have ranges of a space that is forked.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::iter;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use quire::limits::MAX_USERFAULTS;

use super::handler::Handler;
use crate::errno::Errno;
use crate::files::events::Waiters;
use crate::memory::manager::Space;
use crate::sync::Mutex;

/// An open handler, as long as it can be read.
struct Entry {
    /// Those of later handlers are larger.
    number: u64,
    handler: Weak<Handler>,
    /// The address of the word that Quire changes when there is something new to read.
    word: usize,
    /// Kept apart from the handler, whose last reference must not go while Quire wakes.
    readers: Arc<Waiters>,
}

static ENTRIES: Mutex<Vec<Entry>> = Mutex::new(Vec::new());
/// How many entries there are, for callers that need none.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// The number of the newest entry.
static NEWEST: AtomicU64 = AtomicU64::new(0);

/// Adds a handler.
///
/// # Errors
/// [`Errno::ENOMEM`].
pub(super) fn add(handler: Weak<Handler>, word: &AtomicU32, readers: Arc<Waiters>) -> Result<(), Errno> {
    let mut entries = ENTRIES.lock();
    entries.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    let number = NEWEST.fetch_add(1, Ordering::Relaxed) + 1;
    entries.push(Entry { number, handler, word: core::ptr::from_ref(word).addr(), readers });
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

/// The handlers of a space that are open now, from the oldest one. No memory is needed, and no lock is held between two.
fn handlers_of(space: &Space) -> impl Iterator<Item = Arc<Handler>> {
    let (mut last, newest) = (0, NEWEST.load(Ordering::Relaxed));
    let next = move || {
        let entries = ENTRIES.lock();
        let left = entries.iter().filter(|entry| (last + 1..=newest).contains(&entry.number));
        let next = left.min_by_key(|entry| entry.number)?;
        last = next.number;
        Some(next.handler.clone())
    };
    // The end of a handler takes the lock. So under it there are no references that could be the last ones.
    let open = iter::from_fn(next).filter_map(|handler| handler.upgrade());
    open.filter(|handler| handler.is_of(space))
}

/// A fork under way. It has the parent's handlers, which may be closed meanwhile: the ranges of the child are still theirs.
pub struct Fork<'s> {
    parent: &'s Space,
    handlers: [Option<Arc<Handler>>; MAX_USERFAULTS],
}

impl<'s> Fork<'s> {
    /// Before the fork.
    pub fn begin(parent: &'s Space) -> Self {
        let mut handlers = [const { None }; MAX_USERFAULTS];
        if COUNT.load(Ordering::Relaxed) != 0 {
            for (place, handler) in handlers.iter_mut().zip(handlers_of(parent)) {
                *place = Some(handler);
            }
        }
        Self { parent, handlers }
    }

    /// Gives the ranges of a new address space their handlers. The child has not run yet. If that fails, each handler knows
    /// nevertheless that the fork is over.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn end(self, child: &Arc<Space>) -> Result<(), Errno> {
        let mut done = Ok(());
        let mut settle = |handler: &Handler| done = done.and(handler.settle(child));
        self.handlers.iter().flatten().for_each(|handler| settle(handler));
        if COUNT.load(Ordering::Relaxed) != 0 {
            // What another task has opened since the beginning.
            let is_known =
                |new: &Arc<Handler>| self.handlers.iter().flatten().any(|known| Arc::ptr_eq(known, new));
            handlers_of(self.parent).filter(|new| !is_known(new)).for_each(|new| settle(&new));
        }
        done
    }
}
