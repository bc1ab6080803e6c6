//! The program's handle of a handler of faults.
#![forbid(unsafe_code)]

use core::mem;
use core::ops::Deref;
use core::sync::atomic::AtomicU32;

use super::event::{UserfaultChanges, UserfaultEvent, UserfaultFault};
use super::reader::{Next, UserfaultInfo};
use super::registration::Registration;
use crate::error::TooManyHandlers;
use crate::platform::Platform;
use crate::vm::space::shared::MmShared;

/// A handler of faults (Linux: a `userfaultfd`). Any number of threads may read its events at once. When it
/// is closed or dropped, the tasks that wait for it go on. They get
/// [`FaultError::NoHandler`](crate::error::FaultError::NoHandler) until their ranges are unregistered or
/// adopted.
pub struct Userfault<'m, P: Platform> {
    memory: &'m MmShared<'m, P>,
    registration: Registration,
}

/// An event that one handler thread has read. Dropping it puts a fault back, unless it was answered by then,
/// so that a thread that ends without an answer loses none. A change is read for good.
pub struct TakenEvent<'u, 'm, P: Platform> {
    handler: &'u Userfault<'m, P>,
    event: UserfaultEvent,
}

impl<'m, P: Platform> Userfault<'m, P> {
    /// A handler that reads these changes beside the faults of the ranges that will be registered with it.
    ///
    /// # Errors
    /// [`TooManyHandlers`].
    pub fn new(memory: &'m MmShared<'m, P>, changes: UserfaultChanges) -> Result<Self, TooManyHandlers> {
        let registration = memory.userfaults().open(memory.platform(), changes)?;
        Ok(Self { memory, registration })
    }

    pub(super) fn registration(&self) -> Registration {
        self.registration
    }

    /// The next event, if there is one: changes before faults, each in order. The caller holds no lock.
    pub fn next_event(&self) -> Option<TakenEvent<'_, 'm, P>> {
        let context = self.memory.userfaults().of(self.registration);
        match context.next(self.memory.platform(), self.registration, false) {
            Next::Event(event) => Some(TakenEvent { handler: self, event }),
            Next::Nothing(_) | Next::Closed => None,
        }
    }

    /// Waits for an event. `None` if the handler is closed, or the task being killed. The caller holds no
    /// lock.
    pub fn wait_event(&self) -> Option<TakenEvent<'_, 'm, P>> {
        let (platform, context) =
            (self.memory.sleepable().platform(), self.memory.userfaults().of(self.registration));
        while !platform.is_dying() {
            match context.next(platform, self.registration, true) {
                Next::Event(event) => return Some(TakenEvent { handler: self, event }),
                Next::Nothing(seen) => context.sleep(platform, self.registration, seen),
                Next::Closed => return None,
            }
        }
        None
    }

    /// From now on [`Platform::wake`] is called on this word whenever there is something new to read, and when the
    /// handler closes, even if no thread is in [`Self::wait_event`]: for a kernel whose threads wait by `poll`.
    pub fn watch(&self) -> &AtomicU32 {
        let context = self.memory.userfaults().of(self.registration);
        context.watch(self.memory.platform(), self.registration);
        &context.arrivals
    }

    /// Puts back a fault that was read and not answered, so that it is read again; returns whether there was
    /// one. The caller holds no lock.
    pub fn requeue(&self, fault: &UserfaultFault) -> bool {
        let context = self.memory.userfaults().of(self.registration);
        context.requeue(self.memory.platform(), self.registration, Some(fault.ticket)) > 0
    }

    /// Puts back all such faults, if the caller lost track of the threads that read them; returns how many.
    pub fn requeue_all(&self) -> usize {
        let context = self.memory.userfaults().of(self.registration);
        context.requeue(self.memory.platform(), self.registration, None)
    }

    /// How much there is to read and to answer.
    pub fn info(&self) -> UserfaultInfo {
        self.memory.userfaults().of(self.registration).info(self.memory.platform(), self.registration)
    }

    /// Closes the handler, as dropping it does. The caller holds no lock.
    pub fn close(&self) {
        self.memory.userfaults().of(self.registration).close(self.memory.platform(), self.registration);
    }
}

impl<P: Platform> Drop for Userfault<'_, P> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<P: Platform> TakenEvent<'_, '_, P> {
    /// The event, for the caller to answer: no other thread reads it, unless it is
    /// [requeued](Userfault::requeue).
    pub fn keep(self) -> UserfaultEvent {
        let event = self.event;
        mem::forget(self);
        event
    }
}

impl<P: Platform> Deref for TakenEvent<'_, '_, P> {
    type Target = UserfaultEvent;
    fn deref(&self) -> &UserfaultEvent {
        &self.event
    }
}

impl<P: Platform> Drop for TakenEvent<'_, '_, P> {
    fn drop(&mut self) {
        if let UserfaultEvent::Fault(fault) = &self.event {
            self.handler.requeue(fault);
        }
    }
}
