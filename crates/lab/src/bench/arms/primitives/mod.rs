//! Arms of the experiment `time-bench`: the primitives of a page allocator, one at a time.

mod quire;

use crate::bench::experiment::Arm;
use crate::bench::ours::guards::Guarded;

/// One primitive, many times in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Primitive {
    /// The primitive.
    pub what: What,
    /// Repetitions.
    pub count: usize,
}

/// A primitive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Nothing but the loop.
    Loop,
    /// Takes and releases an uncontended spin lock.
    SpinLock,
    /// The same with interrupts off while it is held.
    SpinLockInterruptsOff,
    /// Turns interrupts off and restores them.
    InterruptsOff,
    /// Pins the task to its CPU, and unpins it.
    Pin,
    /// Calls a function directly.
    Call,
    /// Calls a function through a pointer.
    IndirectCall,
    /// Adds to a variable by a locked instruction.
    LockedAdd,
    /// Enters and leaves an empty soft interrupt.
    Interrupt,
    /// Allocates and frees a page frame.
    PagePair,
}

impl What {
    /// Every primitive with its name, which is the published one where there is one.
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

/// Every arm. The checksum of a repetition is the number of times that the primitive ran.
pub fn all() -> Vec<Box<dyn Arm<Primitive>>> {
    Guarded::all().map(|arm| Box::new(quire::Quire(arm)) as Box<dyn Arm<Primitive>>).into()
}
