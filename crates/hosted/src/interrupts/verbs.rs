//! Verbs of a machine that interrupt a piece of work at planned moments, or watch its instructions.

#![allow(unsafe_code)]

#[cfg(not(miri))]
use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(miri))]
use std::time::Duration;

use quire::platform::Context;

#[cfg(not(miri))]
use super::instruction::Access;
#[cfg(not(miri))]
use super::signals;
#[cfg(not(miri))]
use super::ticker::Ticker;
#[cfg(not(miri))]
use super::watch::{Installed, Steps, Watch};
#[cfg(not(miri))]
use crate::error::HostedError;
#[cfg(not(miri))]
use crate::flags::{Running, Stepping};
use crate::machine::Hosted;
use crate::plan::InterruptPlan;
use crate::task::{Events, Source, Task};

/// The result of interrupted work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interrupted<R> {
    /// The result of the work.
    pub result: R,
    /// Events counted: instructions, calls or ticks. Under [`InterruptPlan::Nth`] none after the `n`-th are.
    pub events: u64,
    /// How often the handler ran to its end.
    pub delivered: u64,
}

impl Hosted {
    /// Runs `body`, a piece of work of the running CPU, and lets the interrupt arrive at calls of the platform as `plan`
    /// says, without signals and at the cost of a call.
    ///
    /// Counted are the calls that `body` makes in the context that this is called in: `pin`, `lock_taken` and
    /// `lock_dropped` where ranks are checked, `frames_freed` where TLBs are modelled, `restore_interrupts` when it turns
    /// interrupts on, `online_cpus`, `fence_cpus`, `relax`, and in debug builds `unpin`.
    ///
    /// # Panics
    /// When the thread is no CPU of this machine, when `context` is [`Context::Task`], and as `handler` does, after `body`.
    pub fn interrupt_at_calls<R>(
        &self,
        plan: InterruptPlan,
        context: Context,
        mut handler: impl FnMut(),
        body: impl FnOnce() -> R,
    ) -> Interrupted<R> {
        self.with_source(Events::Calls, plan, context, &mut handler, body)
    }

    /// Runs `body` with a source on this thread.
    fn with_source<R>(
        &self,
        events: Events,
        plan: InterruptPlan,
        context: Context,
        handler: &mut impl FnMut(),
        body: impl FnOnce() -> R,
    ) -> Interrupted<R> {
        let _ = self.this_cpu();
        let source = Task::with(|task| Source::new(task, context, events, plan, handler));
        let result = source.install(body);
        Interrupted { result, events: source.counted(), delivered: source.delivered() }
    }

    /// Runs `body`, a piece of work of the running CPU, one machine instruction at a time, and lets the interrupt arrive
    /// after those instructions that `plan` says. Other threads run as ever. An instruction takes microseconds, ten on a
    /// virtual machine; what comes after the interrupt of [`InterruptPlan::Nth`] runs at full speed.
    ///
    /// Counted are the instructions that `body` executes in the context that this is called in, a few of its beginning and
    /// end included. Those of system calls and of the machine's own work (a walk of its MMU, a flush of its TLBs) are not,
    /// and none after a panic has begun. Handlers may call this again, for an interrupt on top of theirs.
    ///
    /// # Errors
    /// [`HostedError::NoSignals`].
    ///
    /// # Panics
    /// As [`Self::interrupt_at_calls`].
    ///
    /// # Safety
    /// `handler` runs where a signal's handler does, between any two instructions of `body`: whatever `body` may be using
    /// that is not made for that, it must leave alone. That is the heap and the streams of the standard library, locks,
    /// and variables of the thread other than this crate's. The library itself qualifies; a panic with a message does if
    /// `body` uses no heap.
    #[cfg(not(miri))]
    pub unsafe fn interrupt_at_steps<R>(
        &self,
        plan: InterruptPlan,
        context: Context,
        mut handler: impl FnMut() + Send,
        body: impl FnOnce() -> R,
    ) -> Result<Interrupted<R>, HostedError> {
        signals::prepare()?;
        Ok(self.with_source(Events::Steps, plan, context, &mut handler, || {
            let _stepping = Stepping::start();
            body()
        }))
    }

    /// Runs `body`, a piece of work of the running CPU, with the interrupt arriving again and again, `period` (at least
    /// 20 us) after the last one was handled, by a timer of the host that goes on while the thread waits for a processor.
    /// Those that arrive while interrupts are off are delivered once. One takes the host some microseconds, some ten on a
    /// virtual machine.
    ///
    /// # Errors
    /// [`HostedError::NoSignals`].
    ///
    /// # Panics
    /// As [`Self::interrupt_at_calls`].
    ///
    /// # Safety
    /// As [`Self::interrupt_at_steps`].
    #[cfg(not(miri))]
    pub unsafe fn with_interrupts<R>(
        &self,
        period: Duration,
        context: Context,
        mut handler: impl FnMut() + Send,
        body: impl FnOnce() -> R,
    ) -> Result<Interrupted<R>, HostedError> {
        signals::prepare()?;
        let ticker = Ticker::new(period);
        let events = Events::Ticks((&raw const ticker).cast());
        let ticked = || ticker.start().map(|()| body());
        let ran = self.with_source(events, InterruptPlan::Every(1), context, &mut handler, ticked);
        Ok(Interrupted { result: ran.result?, events: ran.events, delivered: ran.delivered })
    }
}

#[cfg(not(miri))]
impl Hosted {
    /// Runs `body` one machine instruction at a time, counts what it executes, and tells `on_access` of all memory that it
    /// is about to read or write, in order. Other threads run as ever. An instruction takes microseconds, ten on a
    /// virtual machine; what comes after `limit` of them runs at full speed and unseen.
    ///
    /// Seen is all that the thread itself executes, the library, the platform and whatever else alike, but not what system
    /// calls and interrupts do, nor what runs in [`Self::unwatched`], nor the one instruction that follows a system call.
    /// Not told of are variables of the thread. A fetch in advance is no access.
    ///
    /// # Errors
    /// [`HostedError::NoSignals`]; [`HostedError::Unreadable`] when `body` has run, but not all of it could be read.
    ///
    /// # Panics
    /// As `body` does.
    ///
    /// # Safety
    /// `on_access` runs where a signal's handler does, between any two instructions of `body`: whatever `body` may be using
    /// that is not made for that, it must leave alone, the heap above all, and it must not panic.
    pub unsafe fn watch_steps<R>(
        &self,
        limit: u64,
        mut on_access: impl FnMut(Access) + Send,
        body: impl FnOnce() -> R,
    ) -> Result<Steps<R>, HostedError> {
        signals::prepare()?;
        let watch = Watch::new(limit, &mut on_access);
        let result = {
            let _installed = Installed::new(&watch);
            let _stepping = Stepping::start();
            body()
        };
        if watch.unreadable.load(Ordering::Relaxed) {
            return Err(HostedError::Unreadable);
        }
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Ok(Steps {
            result,
            instructions: count(&watch.instructions),
            locked: count(&watch.locked),
            cut: watch.cut.load(Ordering::Relaxed),
        })
    }

    /// Runs `action`, a part of work whose instructions are looked at or interrupted, at full speed and without that: what a
    /// machine would do by itself, such as copying a page.
    pub fn unwatched<R>(&self, action: impl FnOnce() -> R) -> R {
        let _running = Running::start();
        action()
    }
}
