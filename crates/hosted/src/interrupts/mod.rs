//! Interrupts that arrive by themselves on a CPU of the machine: at any machine instruction, at any call of the platform, or
//! again and again as time goes by.
//!
//! Each runs its handler as [`Hosted::interrupt`] would, on the same CPU and thread, if the modelled interrupts are on; else
//! it waits for [`FramePlatform::interrupts_restore`](quire::platform::FramePlatform::interrupts_restore). What the machine itself
//! does in one call (a walk of its MMU, a flush of its TLBs) is one step to them, as it is in hardware. They nest as on a
//! real CPU: a soft interrupt arrives on top of tasks only, a hard one on top of soft ones too.

#![allow(unsafe_code)]

#[cfg(not(miri))]
mod instruction;
#[cfg(not(miri))]
mod signals;
mod source;
#[cfg(not(miri))]
mod watch;

#[cfg(not(miri))]
use std::time::Duration;

use quire::platform::Context;

#[cfg(not(miri))]
use crate::error::HostedError;
use crate::failures::FailurePlan;
use crate::machine::Hosted;
use crate::task::Task;

#[cfg(not(miri))]
pub(crate) use signals::{restore_flags, save_flags};
use source::Events;
pub(crate) use source::{Source, called, deliver_waiting, is_in_handler};
#[cfg(not(miri))]
pub(crate) use watch::Watch;
#[cfg(not(miri))]
pub use watch::{Access, Steps};

/// Under Miri nobody looks at instructions.
#[cfg(miri)]
pub(crate) struct Watch;

/// Under Miri there are no flags to keep.
#[cfg(miri)]
pub(crate) fn save_flags() -> u64 {
    0
}

/// Under Miri there are no flags to restore.
#[cfg(miri)]
pub(crate) fn restore_flags(_flags: u64) {}

/// At which of the counted events an interrupt arrives. Events are numbered from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InterruptPlan {
    /// At none: they are counted.
    Count,
    /// At the `n`-th, and no more are counted.
    Nth(u64),
    /// At every `k`-th: those numbered `k - 1`, `2 k - 1`, and so on. Zero is none.
    Every(u64),
    /// At each with a probability of one in `one_in`, decided from the seed and the event's number alone.
    Seeded {
        /// Where the decisions come from.
        seed: u64,
        /// At one in how many it arrives; zero is none.
        one_in: u64,
    },
}

impl InterruptPlan {
    fn chooses(self, number: u64) -> bool {
        match self {
            Self::Count => FailurePlan::Count,
            Self::Nth(n) => FailurePlan::Nth(n),
            Self::Every(k) => FailurePlan::Every(k),
            Self::Seeded { seed, one_in } => FailurePlan::Seeded { seed, one_in },
        }
        .fails(number)
    }
}

/// What came of work that was interrupted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interrupted<R> {
    /// What the work gave.
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
    /// `lock_dropped` where ranks are checked, `frames_freed` where TLBs are modelled, `interrupts_restore` when it turns
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
    /// end included, and those of system calls not; none after a panic has begun. Handlers may call this again, for an interrupt on top of theirs.
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
            let _stepping = signals::Stepping::start();
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
        let ticker = signals::Ticker::new(period);
        let events = Events::Ticks(&raw const ticker);
        let ticked = || ticker.start().map(|()| body());
        let ran = self.with_source(events, InterruptPlan::Every(1), context, &mut handler, ticked);
        Ok(Interrupted { result: ran.result?, events: ran.events, delivered: ran.delivered })
    }
}
