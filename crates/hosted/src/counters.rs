//! Exact counts of the machine's work, per CPU, so that counting shares no cache line.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The machine's work since it was built, or since [`crate::Hosted::reset_counters`].
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// One CPU's counts.
        #[derive(Default)]
        #[repr(align(128))]
        pub(crate) struct CpuCounters {
            $(pub(crate) $name: Count,)*
        }

        impl CpuCounters {
            pub(crate) fn add_to(&self, sum: &mut Counters) {
                $(sum.$name += self.$name.0.load(Ordering::Relaxed);)*
            }

            pub(crate) fn reset(&self) {
                $(self.$name.0.store(0, Ordering::Relaxed);)*
            }
        }
    };
}

counters! {
    /// Flushes of the calling CPU's own TLB.
    flushes_local,
    /// Flushes of other CPUs' TLBs, counted once however many CPUs they went to.
    flushes_remote,
    /// Flushes of kernel translations on all CPUs, counted once however many there are.
    flushes_kernel,
    /// Flushes, local or remote, of a range.
    flushes_range,
    /// Flushes, local or remote, of a whole address space.
    flushes_address_space,
    /// Flushes, local or remote, that included paging-structure caches.
    flushes_tables,
    /// Pages named by flushes of ranges: extent divided by stride.
    pages_flushed,
    /// CPUs that remote flushes and flushes of kernel translations went to, summed: the interrupts that a
    /// kernel would send.
    cpus_targeted,
    /// Flushes that really interrupted the host's processors (`membarrier` calls).
    ipis,
    /// Fences of other CPUs ([`quire::platform::FramePlatform::fence_cpus`]): each interrupts the host's processors,
    /// and a kernel's CPUs that it names.
    fences,
    /// Brackets of a secondary MMU that began.
    brackets,
    /// Brackets of a secondary MMU that ended.
    bracket_ends,
    /// Collapses that a secondary MMU was notified of.
    collapses_told,
    /// Bytes filled with zeroes (counted also when clearing is turned off).
    bytes_cleared,
    /// Bytes copied (counted also when clearing is turned off).
    bytes_copied,
    /// Reschedule points that long calls passed.
    reschedule_points,
    /// Times that a task went to sleep until a word changes (`Platform::wait`).
    waits,
    /// Times that the sleepers on a word were woken (`Platform::wake`).
    wakes,
    /// Page tables loaded.
    roots_loaded,
    /// Page tables loaded with translations that the CPU had kept of them.
    roots_kept,
    /// Frames freed, as reported to a machine that models TLBs.
    frames_freed,
    /// Accesses of the software MMU that the modelled TLB answered.
    tlb_hits,
    /// Accesses of the software MMU that walked the page table.
    tlb_misses,
    /// Page faults that the software MMU raised.
    mmu_faults,
}

/// One count. Only the thread that is the CPU writes it (H3), so an increment needs no locked operation.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// Adds as the only writer.
    #[inline]
    pub(crate) fn add(&self, amount: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }
}
