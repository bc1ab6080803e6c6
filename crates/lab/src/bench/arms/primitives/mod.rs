//! Arms of the experiment `time-bench`: what the page allocator is built from, one at a time.

mod quire;

use crate::bench::experiment::Arm;
use crate::bench::ours::guards::Guarded;

/// One primitive, many times in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Primitive {
    /// What is repeated.
    pub what: What,
    /// How often.
    pub count: usize,
}

/// A primitive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Nothing but the loop.
    Loop,
    /// Takes and releases an uncontended spin lock.
    SpinLock,
    /// The same with interrupts off in between.
    SpinLockInterruptsOff,
    /// Turns interrupts off, puts back what was found.
    InterruptsOff,
    /// Keeps the task on its CPU, lets it go.
    Pin,
    /// Calls a function that is known when the program is built.
    Call,
    /// Calls a function through a pointer.
    IndirectCall,
    /// Adds to a variable by a locked instruction.
    LockedAdd,
    /// Enters a soft interrupt that does nothing, leaves it.
    Interrupt,
    /// Takes a page frame, gives it back.
    PagePair,
}

impl What {
    /// Every primitive with its name; where one was published, under the same name.
    pub const ALL: [(Self, &'static str); 10] = [
        (Self::Loop, "for_loop"),
        (Self::SpinLock, "spin_lock_unlock"),
        (Self::SpinLockInterruptsOff, "spin_lock_unlock_irqsave"),
        (Self::InterruptsOff, "local_irq_save_restore"),
        (Self::Pin, "preempt_disable_enable"),
        (Self::Call, "function_call_cost"),
        (Self::IndirectCall, "func_ptr_call_cost"),
        (Self::LockedAdd, "atomic_add_locked"),
        (Self::Interrupt, "interrupt_entry"),
        (Self::PagePair, "page_alloc_put"),
    ];
}

/// Every arm. The checksum of a repetition is how often the primitive ran.
pub fn all() -> Vec<Box<dyn Arm<Primitive>>> {
    Guarded::all().map(|arm| Box::new(quire::Quire(arm)) as Box<dyn Arm<Primitive>>).into()
}
