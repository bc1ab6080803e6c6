//! Queues in which tasks wait for a condition.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::sched::{current, park, wake};
use super::thread::Task;
use crate::errno::Errno;
use crate::sync::IrqLock;
use crate::time;

/// The tasks that wait for something. The waker first makes the condition true, then wakes.
#[derive(Default)]
pub struct WaitQueue {
    waiters: IrqLock<Vec<Arc<Task>>>,
}

/// A task in a queue, until this is dropped.
struct Waiting<'q> {
    queue: &'q WaitQueue,
    task: Arc<Task>,
}

impl<'q> Waiting<'q> {
    fn enter(queue: &'q WaitQueue) -> Self {
        let task = current();
        queue.waiters.lock().push(task.clone());
        Self { queue, task }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut waiters = self.queue.waiters.lock();
        if let Some(at) = waiters.iter().position(|task| Arc::ptr_eq(task, &self.task)) {
            waiters.remove(at);
        }
    }
}

impl WaitQueue {
    /// An empty queue.
    pub const fn new() -> Self {
        Self { waiters: IrqLock::new(Vec::new()) }
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
        let waiting = Waiting::enter(self);
        let _alarm = deadline.map(|deadline| time::wake_at(deadline, waiting.task.clone()));
        loop {
            if let Some(value) = condition() {
                return Ok(Some(value));
            }
            if waiting.task.is_interrupted() {
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
        let _waiting = Waiting::enter(self);
        loop {
            if let Some(value) = condition() {
                return value;
            }
            park();
        }
    }

    /// Wakes all tasks in the queue.
    pub fn wake_all(&self) {
        for task in self.waiters.lock().iter() {
            wake(task);
        }
    }

    /// Wakes the task that waits longest. If its condition is still false, it sleeps on and no other is woken.
    pub fn wake_one(&self) {
        if let Some(task) = self.waiters.lock().first() {
            wake(task);
        }
    }
}
