//! The sources of a thread's interrupts: a handler, when it is due, and whether it may run now.
//!
//! A [`Source`] lives on the stack of the thread that it interrupts, and is on that thread's list meanwhile.
//! Only that thread touches it, with the interrupts on top of it. An interrupt that may not run now
//! (interrupts are off, the machine itself is at work, the thread is another CPU for a while) is marked as
//! waiting and runs as soon as it may, once however often it arrived. One that arrives while its own handler
//! runs is lost.

#![allow(unsafe_code)]

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence};

use quire::cpu::CpuId;
use quire::platform::Context;

use super::entered::Entered;
#[cfg(not(miri))]
use super::mask::TicksIn;
use super::record::Task;
use crate::plan::InterruptPlan;

/// The events that a source counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Events {
    /// Machine instructions.
    #[cfg(not(miri))]
    Steps,
    /// Calls of the platform.
    Calls,
    /// Ticks of the timer at this address, which lives as long as the source.
    #[cfg(not(miri))]
    Ticks(*const ()),
}

pub(crate) struct Source {
    below: *const Self,
    /// Machine, CPU and context of the counted work.
    machine: usize,
    cpu: CpuId,
    base: Context,
    context: Context,
    events: Events,
    plan: InterruptPlan,
    /// The handler, and a function that calls it with its own type.
    handler: *mut (),
    call: unsafe fn(*mut ()),
    /// Events are still counted.
    active: AtomicBool,
    waiting: AtomicBool,
    running: AtomicBool,
    counted: AtomicU64,
    delivered: AtomicU64,
    panic: UnsafeCell<Option<Box<dyn Any + Send>>>,
}

impl Source {
    /// A source for the running CPU and context, which borrows the handler for as long as it lives.
    pub(crate) fn new<H: FnMut()>(
        task: &Task,
        context: Context,
        events: Events,
        plan: InterruptPlan,
        handler: &mut H,
    ) -> Self {
        /// # Safety
        /// `handler` is an `H` that no other code uses meanwhile.
        unsafe fn call<H: FnMut()>(handler: *mut ()) {
            // SAFETY: H6: the caller passes the `H` that the source was made with, on the list meanwhile.
            unsafe { (*handler.cast::<H>())() }
        }
        assert!(context != Context::Task, "an interrupt cannot run in task context");
        Self {
            below: task.sources.load(Ordering::Relaxed),
            machine: task.machine(),
            cpu: task.cpu(),
            base: task.context(),
            context,
            events,
            plan,
            handler: std::ptr::from_mut(handler).cast(),
            call: call::<H>,
            active: AtomicBool::new(true),
            waiting: AtomicBool::new(false),
            running: AtomicBool::new(false),
            counted: AtomicU64::new(0),
            delivered: AtomicU64::new(0),
            panic: UnsafeCell::new(None),
        }
    }

    /// Lets the source interrupt the running thread while `body` runs; a panic of the handler continues from
    /// here.
    pub(crate) fn install<R>(&self, body: impl FnOnce() -> R) -> R {
        let result = {
            let _installed = Installed::new(self);
            body()
        };
        // SAFETY: H6: the guard is dropped, so the source is on no list and no other code reaches it.
        if let Some(panic) = unsafe { (*self.panic.get()).take() } {
            resume_unwind(panic);
        }
        result
    }

    pub(crate) fn counted(&self) -> u64 {
        self.counted.load(Ordering::Relaxed)
    }

    pub(crate) fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }

    /// Whether the source counts the running code.
    fn counts(&self, task: &Task) -> bool {
        self.active.load(Ordering::Relaxed)
            && !self.running.load(Ordering::Relaxed)
            && task.cpu_of(self.machine) == Some(self.cpu)
            && task.context() == self.base
    }

    /// Counts an event and lets the interrupt arrive if the plan says so.
    fn event(&self, task: &Task) {
        let number = self.counted.fetch_add(1, Ordering::Relaxed);
        if self.plan.chooses(number) {
            if matches!(self.plan, InterruptPlan::Nth(_)) {
                self.active.store(false, Ordering::Relaxed);
            }
            self.arrive(task);
        }
    }

    fn arrive(&self, task: &Task) {
        if self.running.load(Ordering::Relaxed) {
            return;
        }
        if self.may_run(task) {
            self.deliver();
        } else {
            self.waiting.store(true, Ordering::Relaxed);
            task.set_attention(true);
        }
    }

    fn may_run(&self, task: &Task) -> bool {
        let fits = self.context == Context::HardInterrupt || task.context() == Context::Task;
        fits && !task.interrupts_off()
            && !task.is_held()
            && task.cpu_of(self.machine) == Some(self.cpu)
            && !self.running.load(Ordering::Relaxed)
            && !std::thread::panicking()
    }

    /// Runs the handler. A panic waits for the end of the interrupted work, since it cannot pass a signal's
    /// frame.
    fn deliver(&self) {
        self.running.store(true, Ordering::Relaxed);
        self.waiting.store(false, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        let handled = catch_unwind(AssertUnwindSafe(|| {
            let _entered = Entered::interrupt(self.context);
            #[cfg(not(miri))]
            let _others = self.has_rivals().then(TicksIn::open);
            // SAFETY: H6: the source is on the list, so its handler lives and is of the type that `call` expects;
            // `running` keeps a second call out while this one runs.
            unsafe { (self.call)(self.handler) };
        }));
        match handled {
            Ok(()) => _ = self.delivered.fetch_add(1, Ordering::Relaxed),
            Err(panic) => {
                self.active.store(false, Ordering::Relaxed);
                // SAFETY: H6: `install` reads it after the guard is dropped, and `running` keeps every other delivery out.
                unsafe { *self.panic.get() = Some(panic) };
            }
        }
        compiler_fence(Ordering::SeqCst);
        self.running.store(false, Ordering::Relaxed);
    }
}

#[cfg(not(miri))]
impl Source {
    /// Whether this is one of several timers of its thread, so that another one's tick may arrive on top of its own.
    fn has_rivals(&self) -> bool {
        let is_timer = |source: &&Self| matches!(source.events, Events::Ticks(_));
        is_timer(&self) && Task::with(|task| sources(task).filter(is_timer).nth(1).is_some())
    }
}

/// A source on the list of the running thread, until dropped.
struct Installed<'s> {
    source: &'s Source,
    calls_counted: bool,
}

impl<'s> Installed<'s> {
    fn new(source: &'s Source) -> Self {
        Task::with(|task| {
            compiler_fence(Ordering::SeqCst);
            task.sources.store(std::ptr::from_ref(source).cast_mut(), Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
            let calls = source.events == Events::Calls;
            if calls {
                task.set_attention(true);
            }
            Self { source, calls_counted: calls && task.count_calls(true) }
        })
    }
}

impl Drop for Installed<'_> {
    fn drop(&mut self) {
        self.source.active.store(false, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        Task::with(|task| {
            if self.source.events == Events::Calls {
                task.count_calls(self.calls_counted);
            }
            task.sources.store(self.source.below.cast_mut(), Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
        });
    }
}

/// The sources of the running thread, the newest first.
fn sources(task: &Task) -> impl Iterator<Item = &Source> {
    // SAFETY: H6: the newest source is on the list, and the code that walks it runs on top of the guard's stack frame,
    // so it is done before the guard is dropped.
    let first = unsafe { task.sources.load(Ordering::Relaxed).as_ref() };
    std::iter::successors(first, |source| {
        // SAFETY: H6: `below` was on the list when `source` was put on it, and in stack order leaves it later.
        unsafe { source.below.as_ref() }
    })
}

/// Whether a handler runs on this thread, as whichever CPU: some interrupted work continues later.
pub(crate) fn is_in_handler(task: &Task) -> bool {
    sources(task).any(|source| source.running.load(Ordering::Relaxed))
}

/// Runs waiting interrupts that may run now. Called wherever interrupts become possible again.
#[inline]
pub(crate) fn deliver_waiting(task: &Task) {
    if task.wants_attention() {
        deliver_all_waiting(task);
    }
}

#[cold]
#[inline(never)]
fn deliver_all_waiting(task: &Task) {
    task.set_attention(false);
    for source in sources(task) {
        if source.waiting.load(Ordering::Relaxed) && source.may_run(task) {
            source.deliver();
        }
        if source.waiting.load(Ordering::Relaxed) || source.events == Events::Calls {
            task.set_attention(true);
        }
    }
}

/// The platform was called: planned interrupts may arrive now, and waiting ones may run.
#[inline]
pub(crate) fn called(task: &Task) {
    if task.wants_attention() {
        count_call(task);
    }
}

#[cold]
#[inline(never)]
fn count_call(task: &Task) {
    deliver_all_waiting(task);
    for source in sources(task) {
        if source.events == Events::Calls && source.counts(task) {
            source.event(task);
        }
    }
}

/// The processor has executed an instruction. Returns whether a source still counts them. The machine's own
/// work is one step: none of its instructions counts, and the processor stops again at its end.
#[cfg(not(miri))]
pub(crate) fn stepped(task: &Task) -> bool {
    let counts_steps = |source: &&Source| source.events == Events::Steps;
    if std::thread::panicking() {
        // A panicking thread gets no more interrupts, and printing a trace step by step takes seconds.
        sources(task).filter(counts_steps).for_each(|source| source.active.store(false, Ordering::Relaxed));
    }
    let goes_on =
        |task| sources(task).filter(counts_steps).any(|source| source.active.load(Ordering::Relaxed));
    if task.is_held() {
        task.steps_left_off.store(goes_on(task), Ordering::Relaxed);
        return false;
    }
    for source in sources(task).filter(counts_steps) {
        if source.counts(task) {
            source.event(task);
        }
    }
    goes_on(task)
}

/// The timer at this address has ticked. Returns whether it lives and ticks again. A timer whose source is
/// gone is on no list, and its address is only compared.
#[cfg(not(miri))]
pub(crate) fn ticked(task: &Task, ticker: *const ()) -> bool {
    let of_timer = |source: &&Source| source.events == Events::Ticks(ticker);
    let is_active = |source: &&Source| source.active.load(Ordering::Relaxed);
    let Some(source) = sources(task).find(of_timer).filter(is_active) else { return false };
    source.event(task);
    is_active(&source)
}
