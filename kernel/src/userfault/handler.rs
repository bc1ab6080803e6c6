//! One handler: what a descriptor of `userfaultfd(2)` stands for.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicBool, Ordering};

use linux_raw_sys::general as abi;
use quire::vm::{Userfault, UserfaultChanges, UserfaultEvent};
use spin::Once;

use super::registry;
use crate::errno::Errno;
use crate::files::events::Waiters;
use crate::memory::manager::{Space, manager};
use crate::memory::platform::Machine;
use crate::sync::Mutex;
use crate::task::sched;
use crate::task::sleep_lock::SleepLock;
use crate::task::wait::WaitQueue;

/// What a handler may ask for (`UFFDIO_API`).
pub(super) const FEATURES: u32 = abi::UFFD_FEATURE_PAGEFAULT_FLAG_WP
    | abi::UFFD_FEATURE_EVENT_FORK
    | abi::UFFD_FEATURE_EVENT_REMAP
    | abi::UFFD_FEATURE_EVENT_REMOVE
    | abi::UFFD_FEATURE_EVENT_UNMAP
    | abi::UFFD_FEATURE_MISSING_HUGETLBFS
    | abi::UFFD_FEATURE_MISSING_SHMEM
    | abi::UFFD_FEATURE_MINOR_HUGETLBFS
    | abi::UFFD_FEATURE_MINOR_SHMEM
    | abi::UFFD_FEATURE_WP_HUGETLBFS_SHMEM
    | abi::UFFD_FEATURE_SIGBUS
    | abi::UFFD_FEATURE_THREAD_ID
    | abi::UFFD_FEATURE_EXACT_ADDRESS
    | abi::UFFD_FEATURE_POISON;

/// A handler of one address space's faults.
pub struct Handler {
    /// The address space, which a child's handler gets once the fork is done.
    space: Mutex<Weak<Space>>,
    /// The space is known.
    bound: AtomicBool,
    /// Quire's part, once the program has said what it wants.
    ready: Once<Ready>,
    /// Threads that wait for something to read, or for the space.
    pub(super) readers: Arc<Waiters>,
    /// Children whose event was read and whose fork is not done, by the number of their space. Its lock is held while an
    /// event is taken, so a child is here before its fork goes on.
    children: Mutex<BTreeMap<u64, Child>>,
    /// Forks that wait for their child's handler.
    forks: WaitQueue,
    /// Held while it is closed, and while it gets the ranges of a child.
    is_closed: SleepLock<bool>,
}

/// How far the handler of a child is.
enum Child {
    /// A task has read the event, and makes the handler.
    Coming,
    /// It is made, and does not know its space yet.
    Made(Weak<Handler>),
    /// The task that forks was killed before there was one. There is no child any more.
    Gone,
}

/// A handler that may have ranges.
pub(super) struct Ready {
    pub(super) quire: Userfault<'static, Machine>,
    pub(super) features: u32,
}

impl Handler {
    /// A handler of an address space. Says nothing before `UFFDIO_API`.
    pub fn new(space: &Arc<Space>) -> Arc<Self> {
        Self::with_space(Arc::downgrade(space), true)
    }

    fn with_space(space: Weak<Space>, bound: bool) -> Arc<Self> {
        Arc::new(Self {
            space: Mutex::new(space),
            bound: AtomicBool::new(bound),
            ready: Once::new(),
            readers: Arc::default(),
            children: Mutex::new(BTreeMap::new()),
            forks: WaitQueue::new(),
            is_closed: SleepLock::new(false),
        })
    }

    /// Chooses the features. This is possible once.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] the second time; `ENFILE` when there are too many handlers.
    pub(super) fn begin(self: &Arc<Self>, features: u32) -> Result<(), Errno> {
        if self.ready.is_completed() {
            return Err(Errno::EINVAL);
        }
        let wants = [
            (abi::UFFD_FEATURE_EVENT_FORK, UserfaultChanges::FORK),
            (abi::UFFD_FEATURE_EVENT_REMAP, UserfaultChanges::REMAP),
            (abi::UFFD_FEATURE_EVENT_REMOVE, UserfaultChanges::REMOVE),
            (abi::UFFD_FEATURE_EVENT_UNMAP, UserfaultChanges::UNMAP),
            (abi::UFFD_FEATURE_SIGBUS, UserfaultChanges::FAIL),
        ];
        let asked = wants.into_iter().filter(|(feature, _)| features & feature != 0);
        let changes = asked.fold(UserfaultChanges::NONE, |all, (_, change)| all.union(change));
        let quire = manager().userfault(changes).map_err(|error| Errno::of(error.errno()))?;
        let mut new = Some(Ready { quire, features });
        let ready = self.ready.call_once(|| new.take().expect("called once"));
        if new.is_some() {
            return Err(Errno::EINVAL);
        }
        registry::add(Arc::downgrade(self), ready.quire.watch(), self.readers.clone())
    }

    /// Whether a feature was chosen.
    pub(super) fn has(&self, feature: u32) -> bool {
        self.ready.get().is_some_and(|ready| ready.features & feature != 0)
    }

    /// Quire's part.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] before `UFFDIO_API`.
    pub(super) fn ready(&self) -> Result<&Ready, Errno> {
        self.ready.get().ok_or(Errno::EINVAL)
    }

    /// The address space. Waits while it is being made.
    ///
    /// # Errors
    /// [`Errno::ESRCH`] when it is gone; [`Errno::EINTR`].
    pub(super) fn space(&self) -> Result<Arc<Space>, Errno> {
        self.readers.wait(false, || self.bound.load(Ordering::Acquire).then_some(()))?;
        self.space.lock().upgrade().ok_or(Errno::ESRCH)
    }

    /// Whether it handles this address space's faults.
    pub(super) fn is_of(&self, space: &Space) -> bool {
        // The last reference to an address space may be this one. It goes without the lock.
        let own = self.space.lock().upgrade();
        own.is_some_and(|own| own.number() == space.number())
    }

    /// Takes the next event out, if there is one. [`Self::fork`] must follow a fork's.
    pub(super) fn take(&self, ready: &Ready) -> Option<UserfaultEvent> {
        let mut children = self.children.lock();
        loop {
            let event = ready.quire.next_event()?.keep();
            let UserfaultEvent::Fork { child, .. } = event else { return Some(event) };
            // As in Linux, a task that is killed takes back the event of its fork.
            if !matches!(children.remove(&child), Some(Child::Gone)) {
                children.insert(child, Child::Coming);
                return Some(event);
            }
        }
    }

    /// A handler for the child that has this number, with the same features: its event was taken.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub(super) fn fork(self: &Arc<Self>, child: u64) -> Result<Arc<Self>, Errno> {
        let new = Self::with_space(Weak::new(), false);
        let begun = self.ready().and_then(|ready| new.begin(ready.features));
        let mut children = self.children.lock();
        let is_over = matches!(children.remove(&child), Some(Child::Gone));
        if begun.is_ok() && !is_over {
            children.insert(child, Child::Made(Arc::downgrade(&new)));
        }
        drop(children);
        if is_over {
            new.bind(Weak::new());
        }
        self.forks.wake_all();
        begun.map(|()| new)
    }

    /// Gives the ranges that a child has of this handler to the child's own one, or to none. Only a handler that reads the
    /// events of forks is waited for.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`]. The child's handler has its space nevertheless.
    pub(super) fn settle(&self, child: &Arc<Space>) -> Result<(), Errno> {
        let Some(ready) = self.ready.get() else { return Ok(()) };
        let reads = self.has(abi::UFFD_FEATURE_EVENT_FORK);
        let own = if reads { self.handler_of(child.number(), ready) } else { None };
        let is_closed = own.as_ref().map(|own| own.is_closed.lock());
        let open = own.as_ref().filter(|_| is_closed.as_ref().is_some_and(|is_closed| !**is_closed));
        let to = open.and_then(|own| own.ready.get()).map(|ready| &ready.quire);
        let done = child.userfault_hand_over(&ready.quire, to);
        if let Some(own) = &own {
            own.bind(Arc::downgrade(child));
        }
        done?;
        Ok(())
    }

    /// The handler of a child, as soon as the task that has taken the event has made it. None, if none took it, since no
    /// range of the parent is registered; if it cannot be made, or is closed; or if the running task is killed.
    fn handler_of(&self, child: u64, ready: &Ready) -> Option<Arc<Self>> {
        let task = sched::current_ref();
        self.forks.wait_uninterruptible(|| {
            let mut children = self.children.lock();
            match children.get(&child) {
                Some(Child::Made(own)) => {
                    let own = own.upgrade();
                    children.remove(&child);
                    return Some(own);
                }
                Some(_) if !task.is_dying() => return None,
                Some(_) => _ = children.insert(child, Child::Gone),
                // Its event may be unread.
                None if task.is_dying() && ready.quire.info().changes > 0 => {
                    children.insert(child, Child::Gone);
                }
                None => {}
            }
            Some(None)
        })
    }

    /// Says which space it has: that of a child whose fork is done, or none.
    fn bind(&self, space: Weak<Space>) {
        *self.space.lock() = space;
        self.bound.store(true, Ordering::Release);
        self.readers.notify();
    }

    /// Its last descriptor is closed. The ranges have no handler from now on: as with Linux, accesses find zeroes. Those of
    /// a child whose fork is not done follow by [`Self::settle`].
    pub(super) fn close(&self) {
        registry::remove(&self.readers);
        let mut is_closed = self.is_closed.lock();
        let Some(ready) = self.ready.get().filter(|_| !*is_closed) else { return };
        *is_closed = true;
        // The last reference to an address space may be this one. It goes without the lock.
        let space = self.space.lock().upgrade();
        if let Some(space) = space {
            // Without memory to merge mappings, what remains gets errors when it is touched.
            let _ = space.userfault_hand_over(&ready.quire, None);
        }
        ready.quire.close();
    }
}

impl Drop for Handler {
    /// One that never had a descriptor is closed, too.
    fn drop(&mut self) {
        self.close();
    }
}
