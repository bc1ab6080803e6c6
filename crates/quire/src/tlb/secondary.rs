//! Secondary MMUs: who else has copies of an address space's leaves, and is told when they go bad.
//!
//! # Protocol
//!
//! A secondary MMU (a hypervisor's second-stage tables, a device) walks the page table by [`Mm::translate`](crate::vm::Mm::translate) and
//! keeps what it found. It is in no set of CPUs and is flushed by nobody else, so whatever owes a flush owes it a *bracket* as
//! well, whether or not a CPU runs the address space, and [`FlushBatch::flush`](super::FlushBatch::flush) makes both. The entries were changed
//! before. So whoever walks after the start of the bracket finds what came after the change, and whoever walked before it finds, when it wants to keep what it
//! found, that a bracket began since, and walks again. The bracket holds the flush of the CPUs and nothing else.
//!
//! *Who is told.* Registering and its opposite take the address-space lock for writing, and every flush is made by somebody
//! who has held that lock since the entries changed. So one relaxed load says whether there is anybody: who changed an
//! entry before the first one registered has flushed by then.
//!
//! *What needs no bracket.* More rights, and leaves where none were: a copy that allows less, or is missing, makes its user look
//! again. Another shape of the same leaves. Tables that are shared ([`crate::pgtable`]), whose leaves lose a right that nobody
//! could use through them.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use super::MmContext;
use crate::addr::VirtRange;
use crate::platform::TablePlatform;

impl MmContext {
    /// Whether a secondary MMU has copies of leaves. Whoever asks has held the address-space lock since it changed an entry.
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

    /// Says to a secondary MMU, if there is one, that the leaf whose extent is `range` came in the place of smaller ones
    /// ([`TablePlatform::secondary_collapse_possible`]). The address-space lock is held exclusive.
    #[inline]
    pub fn collapse_possible<P: TablePlatform>(&self, platform: &P, range: VirtRange) {
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
