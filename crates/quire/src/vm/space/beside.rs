//! Faults beside the holder of an address space's lock: where they may go on while a verb works on a range.
//!
//! A verb that changes mappings needs the lock for itself for as long as it changes them. What follows, to
//! empty or change entries, to flush and to free, takes nearly all of the time, and concerns a range. Faults
//! outside this range go on meanwhile (`sync/rwlock.rs`, *Readers beside a writer*), as do calls that
//! populate or drop pages outside it. All others wait: what looks at the whole address space, and what
//! changes mappings.
//!
//! The range covers every page table that the verb detaches, and every leaf that the verb changes or that a
//! fault may map in their place. Tables above it are common to both sides: their entries change under the
//! locks of these tables, and none of them is detached.
#![forbid(unsafe_code)]

use crate::addr::{Order, VirtAddr, VirtRange};
use crate::platform::Platform;
use crate::vm::space::address_space::AddressSpace;
use crate::vm::space::guard::SpaceGuard;
use crate::vm::space::state::Space;

impl<P: Platform> AddressSpace<'_, P> {
    /// Where a fault may change or map a leaf that maps something inside the range, whatever folios are
    /// allowed meanwhile: in the whole tables of 4 KiB leaves. Where no table of 2 MiB leaves is at an end,
    /// it is the whole GiB, in which a leaf of 1 GiB may be, or come. Such a table that is there stays.
    pub(in crate::vm) fn reach_of_faults(&self, range: VirtRange) -> VirtRange {
        let bytes_at = |at: VirtAddr| {
            let is_split = self.tables().has_table_of_blocks(at);
            if is_split { Order::BLOCK.bytes() } else { Order::GIGANTIC.bytes() }
        };
        let last = VirtAddr(range.end.0 - 1);
        VirtRange {
            start: range.start.align_down(bytes_at(range.start)),
            end: range.end.align_up(bytes_at(last)).unwrap_or(VirtAddr(u64::MAX)),
        }
    }

    /// Whether leaves may go or lose bits while faults run. No table of the address space is shared then, nor
    /// becomes so while the lock is held.
    pub(in crate::vm) fn allows_faults(&self, space: &Space) -> bool {
        !space.huge
            && !space.handled
            && !self.context.has_shared()
            && !self.context.has_secondary()
            && !self.memory.gigantic_clears().any()
    }

    /// Whether it is worth while to let faults go on: they may, and more than one CPU runs the address space.
    #[inline]
    pub(in crate::vm) fn has_faults_beside(&self, space: &Space) -> bool {
        self.context.runs_on_several(self.memory.platform()) && self.allows_faults(space)
    }

    /// Lets faults outside what `kept` returns go on, if it is worth while.
    #[inline]
    pub(in crate::vm) fn admit_faults(
        &self,
        space: &mut SpaceGuard<'_, P>,
        kept: impl FnOnce() -> VirtRange,
    ) {
        if self.has_faults_beside(space) {
            space.admit(kept());
        }
    }
}
