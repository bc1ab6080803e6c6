//! Queues in which tasks wait for a condition.
//!
//! A task's place in a queue stands on its own stack. So to wait needs no memory, and the lock of a queue,
//! which handlers take too, is never held for an allocation.

use alloc::sync::Arc;
use core::cell::Cell;
use core::iter;
use core::marker::PhantomPinned;
use core::pin::{Pin, pin};
use core::ptr;

use super::sched::{current, park, wake};
use super::thread::Task;
use crate::errno::Errno;
use crate::sync::IrqLock;
use crate::time;

/// The tasks that wait for something. The waker first makes the condition true, then wakes.
#[derive(Default)]
pub struct WaitQueue {
    places: IrqLock<Places>,
}

/// The place of a task in a queue. The links belong to the queue, under its lock.
struct Place {
    task: Arc<Task>,
    previous: Cell<*const Place>,
    next: Cell<*const Place>,
    _pinned: PhantomPinned,
}

/// The first and the last place of a queue, or null.
struct Places {
    first: *const Place,
    last: *const Place,
}

// SAFETY: X9: any CPU may use the places of a queue under its lock.
unsafe impl Send for Places {}

impl Default for Places {
    fn default() -> Self {
        Self::new()
    }
}

impl Places {
    const fn new() -> Self {
        Self { first: ptr::null(), last: ptr::null() }
    }

    fn push_back(&mut self, new: &Place) {
        new.previous.set(self.last);
        // SAFETY: X9: the last place is in the queue, whose lock is held.
        match unsafe { self.last.as_ref() } {
            Some(last) => last.next.set(new),
            None => self.first = new,
        }
        self.last = new;
    }

    fn remove(&mut self, gone: &Place) {
        let (previous, next) = (gone.previous.get(), gone.next.get());
        // SAFETY: X9: the neighbour is in the queue, whose lock is held.
        match unsafe { previous.as_ref() } {
            Some(previous) => previous.next.set(next),
            None => self.first = next,
        }
        // SAFETY: X9: the neighbour behind it is in the queue too, whose lock is held.
        match unsafe { next.as_ref() } {
            Some(next) => next.previous.set(previous),
            None => self.last = previous,
        }
    }

    /// The tasks, in the order in which they came.
    fn tasks(&self) -> impl Iterator<Item = &Arc<Task>> {
        // SAFETY: X9: the place is in the queue, whose lock is held as long as `self` is borrowed.
        let place = |place: *const Place| unsafe { place.as_ref() };
        iter::successors(place(self.first), move |at| place(at.next.get())).map(|place| &place.task)
    }
}

/// A task in a queue, from [`Self::enter`] until this is dropped.
struct Waiting<'q> {
    queue: &'q WaitQueue,
    place: Place,
    is_in: Cell<bool>,
}

impl<'q> Waiting<'q> {
    fn new(queue: &'q WaitQueue) -> Self {
        let (previous, next) = (Cell::new(ptr::null()), Cell::new(ptr::null()));
        let place = Place { task: current(), previous, next, _pinned: PhantomPinned };
        Self { queue, place, is_in: Cell::new(false) }
    }

    /// Its place stays where it is, since it is pinned.
    fn enter(self: Pin<&Self>) {
        self.queue.places.lock().push_back(&self.place);
        self.is_in.set(true);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.is_in.get() {
            self.queue.places.lock().remove(&self.place);
        }
    }
}

impl WaitQueue {
    /// An empty queue.
    pub const fn new() -> Self {
        Self { places: IrqLock::new(Places::new()) }
    }

    /// Sleeps until `condition` gives a value. It is called in the task, must not sleep, and is called again after
    /// each wake-up.
    ///
    /// # Errors
    /// [`Errno::EINTR`] when a signal arrives first.
    pub fn wait_until<T>(&self, condition: impl FnMut() -> Option<T>) -> Result<T, Errno> {
        let found = self.wait_until_deadline(None, condition)?;
        Ok(found.expect("without a deadline time is never up"))
    }

    /// As [`Self::wait_until`], until the time `deadline` (`time::now_ns`). Then returns `None`.
    ///
    /// # Errors
    /// As there.
    pub fn wait_until_deadline<T>(
        &self,
        deadline: Option<u64>,
        mut condition: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>, Errno> {
        if let Some(value) = condition() {
            return Ok(Some(value));
        }
        let waiting = pin!(Waiting::new(self));
        waiting.as_ref().enter();
        let task = &waiting.place.task;
        let _alarm = deadline.map(|deadline| time::wake_at(deadline, task.clone()));
        loop {
            if let Some(value) = condition() {
                return Ok(Some(value));
            }
            if task.is_interrupted() {
                return Err(Errno::EINTR);
            }
            if deadline.is_some_and(|deadline| time::now_ns() >= deadline) {
                return Ok(None);
            }
            park();
        }
    }

    /// Sleeps until `condition` gives a value, whatever signals arrive.
    pub fn wait_uninterruptible<T>(&self, mut condition: impl FnMut() -> Option<T>) -> T {
        if let Some(value) = condition() {
            return value;
        }
        let waiting = pin!(Waiting::new(self));
        waiting.as_ref().enter();
        loop {
            if let Some(value) = condition() {
                return value;
            }
            park();
        }
    }

    /// Wakes all tasks in the queue.
    pub fn wake_all(&self) {
        self.places.lock().tasks().for_each(wake);
    }

    /// Wakes the task that waits longest. If its condition is still false, it sleeps on and no other is woken.
    pub fn wake_one(&self) {
        self.places.lock().tasks().take(1).for_each(wake);
    }
}
