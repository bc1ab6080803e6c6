//! Secondary MMUs: other holders of copies of an address space's leaves, which are told when those go bad.
//!
//! # Protocol
//!
//! A secondary MMU (a hypervisor's second-stage tables, a device) walks the page table by
//! [`Mm::translate`](crate::vm::Mm::translate) and keeps what it found. It is in no set of CPUs, and no other
//! call flushes it. So a flush that is owed comes with a *bracket*, whether or not a CPU runs the address
//! space; [`FlushBatch::flush`](super::FlushBatch::flush) makes both. The entries changed before. A walk
//! after the start of the bracket finds what came after the change. A walk before it finds, when the MMU
//! wants to keep the result, that a bracket began since, and is repeated. The bracket holds the flush of the
//! CPUs and nothing else.
//!
//! *When is there one?* Registering and its opposite take the address-space lock for writing, and the task
//! that makes a flush has held that lock since the entries changed. So one relaxed load says whether a
//! secondary MMU is registered: a task that changed an entry before the first one registered has flushed by
//! then.
//!
//! *What needs no bracket?* More rights, and leaves where none were: a copy that allows less, or is missing,
//! makes its user walk again. Another shape of the same leaves. Shared tables ([`crate::pgtable`]) whose
//! leaves lose a right that no address space could use through them.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use super::MmContext;
use crate::addr::VirtRange;
use crate::platform::TablePlatform;

impl MmContext {
    /// Whether a secondary MMU has copies of leaves. The caller has held the address-space lock since it
    /// changed an entry.
    #[inline]
    pub(crate) fn has_secondary(&self) -> bool {
        self.secondaries.load(Ordering::Relaxed) != 0
    }

    /// One secondary MMU more. The address-space lock is held exclusive.
    pub(crate) fn add_secondary(&self) {
        self.secondaries.fetch_add(1, Ordering::Relaxed);
    }

    /// One secondary MMU less, which has no copies any more. The address-space lock is held exclusive.
    pub(crate) fn remove_secondary(&self) {
        let before = self.secondaries.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "more secondary MMUs went than came");
    }

    /// Says to a secondary MMU, if there is one, that the leaf whose extent is `range` came in the place of
    /// smaller ones ([`TablePlatform::secondary_collapse_possible`]). The address-space lock is held
    /// exclusive.
    #[inline]
    pub(crate) fn collapse_possible<P: TablePlatform>(&self, platform: &P, range: VirtRange) {
        if self.has_secondary() {
            platform.secondary_collapse_possible(self.root(), range);
        }
    }
}

/// Flushes the CPUs between the start and the end of a bracket.
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
