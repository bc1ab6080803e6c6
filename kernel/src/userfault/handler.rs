//! One handler: what a descriptor of `userfaultfd(2)` stands for.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use linux_raw_sys::general as abi;
use quire::vm::{Userfault, UserfaultChanges};
use spin::Once;

use super::registry;
use crate::errno::Errno;
use crate::files::events::Waiters;
use crate::memory::manager::{Space, manager};
use crate::memory::platform::Machine;
use crate::sync::Mutex;
use crate::task::sched;

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
    /// Handlers of children whose event was read and whose fork is not done, by the number of their space.
    children: Mutex<BTreeMap<u64, Weak<Handler>>>,
    /// How many tasks have taken an event, or are about to, whose child is not in the list above yet.
    pub(super) taking: AtomicUsize,
    /// The handler whose event made this one, until that fork is done: its last descriptor may be closed before.
    origin: Mutex<Option<Arc<Handler>>>,
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
            taking: AtomicUsize::new(0),
            origin: Mutex::new(None),
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

    /// A handler for the child that has this number, with the same features: its event was read.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub(super) fn fork(self: &Arc<Self>, child: u64) -> Result<Arc<Self>, Errno> {
        let new = Self::with_space(Weak::new(), false);
        new.begin(self.ready()?.features)?;
        *new.origin.lock() = Some(self.clone());
        self.children.lock().insert(child, Arc::downgrade(&new));
        Ok(new)
    }

    /// Gives the ranges that a child has of this handler to the child's own one, or to none.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub(super) fn settle(&self, child: &Arc<Space>) -> Result<(), Errno> {
        let Some(ready) = self.ready.get() else { return Ok(()) };
        // The fork goes on when its event is taken, perhaps before that task has made the child's handler.
        let own = loop {
            let is_taken = self.taking.load(Ordering::SeqCst) > 0;
            let own = self.children.lock().remove(&child.number());
            if own.is_some() || !is_taken {
                break own.and_then(|own| own.upgrade());
            }
            sched::schedule();
        };
        let to = own.as_ref().and_then(|own| own.ready.get()).map(|ready| &ready.quire);
        let done = child.userfault_hand_over(&ready.quire, to);
        if let Some(own) = own {
            *own.space.lock() = Arc::downgrade(child);
            own.bound.store(true, Ordering::Release);
            own.readers.notify();
            // Not its last reference: the caller has one.
            drop(own.origin.lock().take());
        }
        done?;
        Ok(())
    }
}

impl Drop for Handler {
    /// The ranges have no handler from now on: as with Linux, accesses find zeroes.
    fn drop(&mut self) {
        registry::remove(&self.readers);
        let Some(ready) = self.ready.get() else { return };
        let space = self.space.get_mut().upgrade();
        if let Some(space) = space {
            // Without memory to merge mappings, what remains gets errors when it is touched.
            let _ = space.userfault_hand_over(&ready.quire, None);
        }
    }
}
