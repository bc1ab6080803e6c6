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
    /// The same with interrupts off while it is held, by calls of their own: Quire's locks know no interrupts.
    SpinLockInterruptsOff,
    /// The same where interrupts are known to be on, so that no flags are saved.
    SpinLockFlagsUnsaved,
    /// Turns interrupts off and restores them.
    InterruptsOff,
    /// Turns interrupts off and on.
    InterruptsFlagsUnsaved,
    /// Keeps soft interrupts out and lets them in.
    SoftInterruptsOff,
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
    pub const ALL: [(Self, &'static str); 15] = [
        (Self::Loop, "for_loop"),
        (Self::SpinLock, "spin_lock_unlock"),
        (Self::SpinLockInterruptsOff, "spin_lock_unlock_irqsave"),
        (Self::SpinLockInterruptsOff, "irqsave_before_lock"),
        (Self::SpinLockFlagsUnsaved, "spin_lock_unlock_irq"),
        (Self::SpinLockFlagsUnsaved, "simple_irq_disable_before_lock"),
        (Self::SoftInterruptsOff, "local_BH_disable_enable"),
        (Self::InterruptsFlagsUnsaved, "local_IRQ_disable_enable"),
        (Self::InterruptsOff, "local_irq_save_restore"),
        (Self::Pin, "preempt_disable_enable"),
        (Self::Call, "function_call_cost"),
        (Self::IndirectCall, "func_ptr_call_cost"),
        (Self::LockedAdd, "atomic_add_locked"),
        (Self::Interrupt, "interrupt_entry"),
        (Self::PagePair, "page_alloc_put"),
    ];

    /// Whether a kernel saves the processor's flags for it, and restores them.
    pub fn saves_flags(self) -> bool {
        !matches!(self, Self::SpinLockFlagsUnsaved | Self::InterruptsFlagsUnsaved)
    }
}

/// Every arm. The checksum of a repetition is the number of times that the primitive ran.
pub fn all() -> Vec<Box<dyn Arm<Primitive>>> {
    Guarded::all().map(|arm| Box::new(quire::Quire(arm)) as Box<dyn Arm<Primitive>>).into()
}
