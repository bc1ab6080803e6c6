//! Waiting for files: one task in a call of one file, or `poll` and `epoll` for many.

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general as abi;

use crate::errno::Errno;
use crate::sync::Mutex;
use crate::task::wait::WaitQueue;

/// What a file is ready for: the bits of `poll(2)`.
pub type Events = u32;

/// There is something to read, or the end.
pub const READABLE: Events = abi::POLLIN | abi::POLLRDNORM;
/// A write would not wait.
pub const WRITABLE: Events = abi::POLLOUT | abi::POLLWRNORM;
/// What `poll` reports even if it was not asked.
pub const ALWAYS: Events = abi::POLLERR | abi::POLLHUP;

/// Is told that a file may be ready, by a task: spin locks of tasks are held meanwhile.
pub trait Watcher: Send + Sync {
    /// The file's state has changed.
    fn notice(&self);

    /// What waits for the set that this watcher belongs to, if it belongs to one: they are notified too.
    fn set(&self) -> Option<&Waiters> {
        None
    }
}

/// The ways on which a notification goes on from a file: through the sets that contain it, and those that contain these.
#[derive(Clone, Copy, Default)]
pub struct Ways {
    /// How many there are, or more than were asked for.
    pub count: usize,
    /// How many sets the longest of them has.
    pub depth: usize,
}

/// The tasks and the watchers that wait for a file. The file changes first, then notifies.
#[derive(Default)]
pub struct Waiters {
    queue: WaitQueue,
    watchers: Mutex<Vec<Arc<dyn Watcher>>>,
}

impl Waiters {
    /// None yet.
    pub const fn new() -> Self {
        Self { queue: WaitQueue::new(), watchers: Mutex::new(Vec::new()) }
    }

    /// Sleeps until `condition` gives a value; with `nonblocking` it fails instead.
    ///
    /// # Errors
    /// [`Errno::EAGAIN`] with `nonblocking`; [`Errno::EINTR`] when a signal comes first.
    pub fn wait<T>(&self, nonblocking: bool, condition: impl FnMut() -> Option<T>) -> Result<T, Errno> {
        self.wait_until(nonblocking, None, condition)
    }

    /// The same until the time `deadline`.
    ///
    /// # Errors
    /// The same, and [`Errno::EAGAIN`] when the time is up.
    pub fn wait_until<T>(
        &self,
        nonblocking: bool,
        deadline: Option<u64>,
        mut condition: impl FnMut() -> Option<T>,
    ) -> Result<T, Errno> {
        if nonblocking {
            return condition().ok_or(Errno::EAGAIN);
        }
        self.queue.wait_until_deadline(deadline, condition)?.ok_or(Errno::EAGAIN)
    }

    /// The queue, for other ways to wait.
    pub fn queue(&self) -> &WaitQueue {
        &self.queue
    }

    /// Lets everything that waits look again.
    pub fn notify(&self) {
        self.queue.wake_all();
        for watcher in self.watchers.lock().iter() {
            watcher.notice();
        }
    }

    /// The ways from here; the count is right up to `most`. No set contains itself, so each way ends.
    pub fn ways(&self, most: usize) -> Ways {
        let mut ways = Ways::default();
        for set in self.watchers.lock().iter().filter_map(|watcher| watcher.set()) {
            let above = set.ways(most);
            ways.count += 1 + above.count;
            ways.depth = ways.depth.max(1 + above.depth);
            if ways.count > most {
                break;
            }
        }
        ways
    }

    /// Adds a watcher.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn watch(&self, watcher: Arc<dyn Watcher>) -> Result<(), Errno> {
        let mut watchers = self.watchers.lock();
        watchers.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        watchers.push(watcher);
        Ok(())
    }

    /// Removes a watcher, if it is there.
    pub fn unwatch(&self, watcher: &Arc<dyn Watcher>) {
        let mut watchers = self.watchers.lock();
        let found = watchers.iter().position(|other| Arc::ptr_eq(other, watcher));
        let removed = found.map(|at| watchers.swap_remove(at));
        drop(watchers);
        // Its last reference may free memory, which needs no lock held.
        drop(removed);
    }
}
