//! Which CPUs may go on using the translations that they had of an address space when they left it, on a
//! machine whose CPUs tell translations of several roots apart (process-context identifiers).
//!
//! A flush reaches the CPUs that run the address space. Those that have left it get no interrupt: they lose
//! the right to what they kept, and start afresh when they return.
//!
//! | a flush | a CPU that leaves and returns |
//! |---|---|
//! | 1. counts itself as under way | 1. enters the set of CPUs with kept translations |
//! | 2. empties that set | 2. leaves it again, if a flush is under way |
//! | 3. reads which CPUs run the address space, and flushes them | 3. loads another root |
//! | 4. counts itself as done | 4. is no longer one that runs the address space |
//! | | 5. returns: is one that runs it |
//! | | 6. holds interrupts off, and leaves the set |
//! | | 7. loads the root, with what it kept if it was in the set, else without; then interrupts are on |
//!
//! A flush that does not find the CPU at 3. comes after 4. or before 5. If the CPU entered the set after the
//! flush emptied it, it saw the flush at 2., which was not done yet; otherwise the flush removed it, which it
//! sees at 6. A flush that does find it interrupts it. An interrupt before 6. finds another root and flushes
//! nothing; but the set was emptied before it was sent, which the CPU sees at 6. One that is sent after 6.
//! comes after 7., flushes what was loaded, and the flush waits for it.
//!
//! The decision stands before the load, and no interrupt between them, because a processor uses what it has
//! from the load on: it translates addresses on its own, for loads that it may never carry out. A pointer to
//! a table that was freed meanwhile would lead it to other data, in which it may even set an accessed bit.
#![forbid(unsafe_code)]

use crate::atomic::{AtomicU64, Ordering, fence};
use crate::cpu::{AtomicCpuSet, CpuId};

/// The CPUs that may use what they kept of one address space.
#[derive(Debug, Default)]
pub(crate) struct KeptCpus {
    kept: AtomicCpuSet,
    /// Flushes under way.
    flushes: AtomicU64,
}

impl KeptCpus {
    /// No CPU has anything.
    pub(crate) const fn new() -> Self {
        Self { kept: AtomicCpuSet::new(), flushes: AtomicU64::new(0) }
    }

    /// A flush begins, after the entries were changed and before it reads which CPUs run the address space.
    #[inline]
    pub(crate) fn begin_flush(&self) {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.kept.clear();
    }

    /// The CPUs that it found have flushed.
    #[inline]
    pub(crate) fn end_flush(&self) {
        self.flushes.fetch_sub(1, Ordering::SeqCst);
    }

    /// The running CPU will load another root, and is still one that runs the address space.
    #[inline]
    pub(crate) fn leave(&self, cpu: CpuId) {
        self.kept.insert(cpu);
        fence(Ordering::SeqCst);
        if self.flushes.load(Ordering::SeqCst) > 0 {
            self.kept.remove(cpu);
        }
    }

    /// Whether the running CPU may still have something to keep. A hint.
    #[inline]
    pub(crate) fn may_keep(&self, cpu: CpuId) -> bool {
        self.kept.contains(cpu)
    }

    /// The running CPU is one that runs the address space, and will load its root before it takes an
    /// interrupt. Returns whether what it kept is still good.
    #[inline]
    pub(crate) fn take(&self, cpu: CpuId) -> bool {
        fence(Ordering::SeqCst);
        self.kept.take(cpu)
    }
}
