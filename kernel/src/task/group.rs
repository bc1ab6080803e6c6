//! Control groups (version 2): processes that have limits on huge pages together.
//!
//! A group is part of another one. It counts for itself if that one gives it the controller `hugetlb`
//! (`cgroup.subtree_control`); otherwise its processes are counted where the other one's are. As in Linux, a group
//! that gives the controller has no processes of its own, unless it is the root.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::iter;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use quire::hugetlb::HugeGroup;
use spin::Once;

use super::process::Process;
use super::sleep_lock::SleepLock;
use super::table;
use crate::errno::Errno;
use crate::memory::list;
use crate::memory::manager::{Space, manager};
use crate::sync::Mutex;

/// Held while groups come, go or change, and while a process changes its group.
static CHANGES: SleepLock<()> = SleepLock::new(());

/// A control group.
pub struct ControlGroup {
    /// Its name in its parent.
    pub name: Arc<[u8]>,
    /// A number that no other group has.
    pub number: u64,
    parent: Option<Weak<ControlGroup>>,
    children: Mutex<Vec<Arc<ControlGroup>>>,
    /// Where its processes' huge pages are counted.
    huge: Mutex<HugeGroup>,
    /// Its children have the controller.
    gives: AtomicBool,
}

/// The group that all others are part of.
pub fn root() -> &'static Arc<ControlGroup> {
    static ROOT: Once<Arc<ControlGroup>> = Once::new();
    ROOT.call_once(|| ControlGroup::new(Arc::from(*b"/"), None, HugeGroup::NONE))
}

/// Counts the huge pages of an address space, which a process gets for a new program, in the process's group.
pub fn apply(process: &Process, space: &Space) {
    let _one_at_a_time = CHANGES.lock();
    let group = process.control_group.lock().clone();
    let huge = *group.huge.lock();
    space.set_huge_group(huge);
}

fn count_where(process: &Process, huge: HugeGroup) {
    if let Some(space) = process.space_handle() {
        space.set_huge_group(huge);
    }
}

impl ControlGroup {
    fn new(name: Arc<[u8]>, parent: Option<Weak<Self>>, huge: HugeGroup) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Arc::new(Self {
            name,
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            parent,
            children: Mutex::new(Vec::new()),
            huge: Mutex::new(huge),
            gives: AtomicBool::new(false),
        })
    }

    /// The group that it is part of; none for the root.
    pub fn parent(&self) -> Option<Arc<Self>> {
        self.parent.as_ref()?.upgrade()
    }

    /// The names on its path from the root, its own first. A loop, since a program may nest groups deeper
    /// than the kernel's stack.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn names(&self) -> Result<Vec<Arc<[u8]>>, Errno> {
        let named = |group: Option<Arc<Self>>| group.filter(|group| group.parent.is_some());
        let mut names = Vec::new();
        if self.parent.is_some() {
            list::append(&mut names, [self.name.clone()])?;
        }
        let above = iter::successors(named(self.parent()), |group| named(group.parent()));
        list::append(&mut names, above.map(|group| group.name.clone()))?;
        Ok(names)
    }

    /// Whether it may count huge pages, or give this to its children.
    pub fn has_controller(&self) -> bool {
        self.parent().is_none_or(|parent| parent.gives())
    }

    /// Whether its children count huge pages.
    pub fn gives(&self) -> bool {
        self.gives.load(Ordering::Relaxed)
    }

    /// Its number in Quire, if it counts huge pages itself.
    pub fn counter(&self) -> Option<HugeGroup> {
        Some(*self.huge.lock()).filter(|_| self.parent.is_some() && self.has_controller())
    }

    /// Its children.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn children(&self) -> Result<Vec<Arc<Self>>, Errno> {
        list::collect(self.children.lock().iter().cloned())
    }

    /// Its child of this name.
    pub fn child(&self, name: &[u8]) -> Option<Arc<Self>> {
        self.children.lock().iter().find(|child| *child.name == *name).cloned()
    }

    /// Its processes.
    pub fn processes(&self) -> impl Iterator<Item = Arc<Process>> {
        let of_this = |process: &Arc<Process>| core::ptr::eq(&**process.control_group.lock(), self);
        table::processes().filter(move |process| !process.has_ended() && of_this(process))
    }

    /// Makes a child.
    ///
    /// # Errors
    /// [`Errno::EEXIST`]; those of [`HugeGroupError`](quire::hugetlb::HugeGroupError).
    pub fn make(self: &Arc<Self>, name: &[u8]) -> Result<Arc<Self>, Errno> {
        let _one_at_a_time = CHANGES.lock();
        if self.child(name).is_some() {
            return Err(Errno::EEXIST);
        }
        let huge = if self.gives() { self.make_counter()? } else { *self.huge.lock() };
        let child = Self::new(name.into(), Some(Arc::downgrade(self)), huge);
        let added = list::append(&mut self.children.lock(), [child.clone()]);
        if added.is_err()
            && let Some(counter) = child.counter()
        {
            manager().huge_pools().remove_group(counter);
        }
        added.map(|()| child)
    }

    fn make_counter(&self) -> Result<HugeGroup, Errno> {
        let parent = *self.huge.lock();
        let made = manager().huge_pools().make_group(manager().pages(), parent);
        made.map_err(|error| Errno::of(error.errno()))
    }

    /// Removes a child.
    ///
    /// # Errors
    /// [`Errno::ENOENT`]; [`Errno::EBUSY`] while it has processes or children.
    pub fn remove(&self, name: &[u8]) -> Result<(), Errno> {
        let _one_at_a_time = CHANGES.lock();
        let found = self.child(name).ok_or(Errno::ENOENT)?;
        if found.processes().next().is_some() || !found.children.lock().is_empty() {
            return Err(Errno::EBUSY);
        }
        if let Some(counter) = found.counter() {
            manager().huge_pools().remove_group(counter);
        }
        let mut children = self.children.lock();
        children.retain(|child| !Arc::ptr_eq(child, &found));
        children.shrink_to_fit();
        Ok(())
    }

    /// Gives its children the controller, or takes it.
    ///
    /// # Errors
    /// [`Errno::ENOENT`] without the controller; [`Errno::EBUSY`] if it has processes and is not the root, or if a child
    /// gives the controller itself.
    pub fn give(&self, gives: bool) -> Result<(), Errno> {
        let _one_at_a_time = CHANGES.lock();
        if gives == self.gives() {
            return Ok(());
        }
        if !self.has_controller() {
            return Err(Errno::ENOENT);
        }
        let busy = if gives {
            self.parent.is_some() && self.processes().next().is_some()
        } else {
            self.children.lock().iter().any(|child| child.gives())
        };
        if busy {
            return Err(Errno::EBUSY);
        }
        let own = *self.huge.lock();
        for child in self.children()? {
            let counter = if gives { self.make_counter()? } else { own };
            let old = core::mem::replace(&mut *child.huge.lock(), counter);
            child.processes().for_each(|process| count_where(&process, counter));
            if !gives {
                manager().huge_pools().remove_group(old);
            }
        }
        self.gives.store(gives, Ordering::Relaxed);
        Ok(())
    }

    /// Makes a process part of it.
    ///
    /// # Errors
    /// [`Errno::ENODEV`] for a group that was removed; [`Errno::EBUSY`] where it gives the controller and is not the root.
    pub fn join(self: &Arc<Self>, process: &Process) -> Result<(), Errno> {
        let _one_at_a_time = CHANGES.lock();
        let huge = self.take_in(process)?;
        count_where(process, huge);
        Ok(())
    }

    /// As [`Self::join`], for a process that shares its memory with another one: that memory counts where it did.
    ///
    /// # Errors
    /// As for [`Self::join`].
    pub fn join_without_memory(self: &Arc<Self>, process: &Process) -> Result<(), Errno> {
        let _one_at_a_time = CHANGES.lock();
        self.take_in(process).map(drop)
    }

    /// Makes a process part of it; returns where its memory counts then. Under the lock of changes.
    fn take_in(self: &Arc<Self>, process: &Process) -> Result<HugeGroup, Errno> {
        let own = |child: Arc<Self>| Arc::ptr_eq(&child, self);
        let is_there = |parent: Arc<Self>| parent.child(&self.name).is_some_and(own);
        if self.parent.is_some() && !self.parent().is_some_and(is_there) {
            return Err(Errno::ENODEV);
        }
        if self.gives() && self.parent.is_some() {
            return Err(Errno::EBUSY);
        }
        let old = core::mem::replace(&mut *process.control_group.lock(), self.clone());
        drop(old);
        let huge = *self.huge.lock();
        Ok(huge)
    }
}
