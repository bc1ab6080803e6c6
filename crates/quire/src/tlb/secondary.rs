//! Secondary MMUs: devices with copies of an address space's leaves, which must learn when the copies go bad.
//!
//! # Protocol
//!
//! A secondary MMU (a hypervisor's second-stage tables, a device) walks the page table by
//! [`Mm::translate`](crate::vm::Mm::translate) and keeps the result. It is in no set of CPUs, and no other
//! call flushes it. So every owed flush has a *bracket* around it, even if no CPU runs the address space;
//! [`FlushBatch::flush`](super::FlushBatch::flush) makes both. The entries change before the bracket starts.
//! A walk after the start finds the new entries. A walk before the start may find old ones; when the MMU then
//! tries to keep the result, it sees that a bracket began, and walks again. Only the flush is inside.
//!
//! *When is there a bracket?* A secondary MMU is registered and removed under the address-space lock, held
//! for writing. A task that makes a flush has held this lock since the entries changed. So one relaxed load
//! says whether a secondary MMU is registered; a change before its registration is flushed by then.
//!
//! *What needs no bracket?* New leaves and new rights: a copy that allows less, or is missing, makes its user
//! walk again. Another shape of the same leaves. Shared tables ([`crate::pgtable`]) whose leaves lose a right
//! that no address space could use through them.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use super::MmContext;
use crate::addr::VirtRange;
use crate::platform::TablePlatform;

impl MmContext {
    /// Whether a secondary MMU has copies. The caller has held the address-space lock since its change.
    #[inline]
    pub(crate) fn has_secondary(&self) -> bool {
        self.secondaries.load(Ordering::Relaxed) != 0
    }

    /// The caller holds the address-space lock for writing.
    pub(crate) fn add_secondary(&self) {
        self.secondaries.fetch_add(1, Ordering::Relaxed);
    }

    /// The secondary MMU has no copies any more. The caller holds the address-space lock for writing.
    pub(crate) fn remove_secondary(&self) {
        let before = self.secondaries.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "more secondary MMUs went than came");
    }

    /// Tells a secondary MMU, if there is one, that larger leaves may map `range`
    /// ([`TablePlatform::secondary_collapse_possible`]). The caller holds the address-space lock.
    #[inline]
    pub(crate) fn collapse_possible<P: TablePlatform>(&self, platform: &P, range: VirtRange) {
        if self.has_secondary() {
            platform.secondary_collapse_possible(self.root(), range);
        }
    }
}

#[cold]
#[inline(never)]
pub(super) fn bracketed<P: TablePlatform>(
    platform: &P,
    context: &MmContext,
    range: VirtRange,
    flush: impl FnOnce(),
) {
    platform.secondary_invalidate_start(context.root(), range);
    flush();
    platform.secondary_invalidate_end(context.root(), range);
}
