//! What the flush must know of an address space: its root table and the CPUs that run it.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::ZapStrategy;
use crate::addr::Frame;
use crate::arch::PagingMode;
use crate::cpu::{AtomicCpuSet, CpuId, CpuSet};
use crate::platform::TablePlatform;
use crate::sync::Pinned;

/// An address space as hardware knows it: the root of its page tables and the CPUs that use them.
///
/// Made and unmade by [`crate::pgtable::PageTables::create`] and [`crate::pgtable::PageTables::destroy`].
#[derive(Debug)]
pub struct MmContext {
    root: Frame,
    mode: PagingMode,
    zap: ZapStrategy,
    cpus: AtomicCpuSet,
    /// Page-table pages that the address space has, the root included.
    tables: AtomicU64,
    /// Some of them were shared with another address space at some time.
    shared: AtomicBool,
    /// Some leaves were marked for a handler at some time.
    marks: AtomicBool,
    /// Some leaves, or places for them, became markers at some time.
    lost: AtomicBool,
    /// Secondary MMUs that have copies of leaves.
    pub(super) secondaries: AtomicU32,
}

impl MmContext {
    /// The context of a root table that is empty and that nothing else names.
    pub(crate) fn new(root: Frame, mode: PagingMode) -> Self {
        Self {
            root,
            mode,
            zap: ZapStrategy::default(),
            cpus: AtomicCpuSet::new(),
            tables: AtomicU64::new(1),
            shared: AtomicBool::new(false),
            marks: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            secondaries: AtomicU32::new(0),
        }
    }

    /// The same, taken apart in this way.
    #[cfg(feature = "published")]
    #[must_use]
    pub fn with_zap(self, zap: ZapStrategy) -> Self {
        self.taken_apart_by(zap)
    }

    pub(crate) fn taken_apart_by(self, zap: ZapStrategy) -> Self {
        Self { zap, ..self }
    }

    /// The root table.
    #[inline]
    pub fn root(&self) -> Frame {
        self.root
    }

    /// How many levels the tables have.
    #[inline]
    pub fn mode(&self) -> PagingMode {
        self.mode
    }

    /// How what it maps is taken apart.
    #[inline]
    pub(crate) fn zap(&self) -> ZapStrategy {
        self.zap
    }

    /// Page-table pages that the address space has, the root included; those that are detached count until
    /// they are freed. One that is shared counts in every address space that reaches it.
    #[inline]
    pub fn tables(&self) -> u64 {
        self.tables.load(Ordering::Relaxed)
    }

    /// The running CPU starts to run the address space: from here on it is flushed. Sequentially consistent
    /// with the flushes: one that does not see the CPU changed the tables before the CPU could read them.
    pub fn switch_in<P: TablePlatform>(&self, platform: &P) {
        let pinned = Pinned::new(platform);
        self.cpus.insert(pinned.cpu());
        platform.load_root(Some(self.root));
    }

    /// The running CPU stops running the address space and runs none.
    pub fn switch_out<P: TablePlatform>(&self, platform: &P) {
        let pinned = Pinned::new(platform);
        platform.load_root(None);
        self.cpus.remove(pinned.cpu());
    }

    /// The running CPU, pinned, goes from this address space straight to `next`.
    pub fn switch_to<P: TablePlatform>(&self, next: &Self, platform: &P, cpu: CpuId) {
        next.cpus.insert(cpu);
        platform.load_root(Some(next.root));
        self.cpus.remove(cpu);
    }

    /// The CPUs that run the address space now.
    #[inline]
    pub fn running(&self) -> CpuSet {
        self.cpus.snapshot()
    }

    /// Whether tables of the address space may be shared with another one.
    #[inline]
    pub(crate) fn has_shared(&self) -> bool {
        self.shared.load(Ordering::Relaxed)
    }

    /// Tables are shared from now on. The address-space lock is held exclusive.
    #[inline]
    pub(crate) fn note_shared(&self) {
        self.shared.store(true, Ordering::Relaxed);
    }

    /// Whether leaves may be marked for a handler.
    #[inline]
    pub(crate) fn has_marks(&self) -> bool {
        self.marks.load(Ordering::Relaxed)
    }

    /// Leaves are marked for a handler from now on. The address-space lock is held exclusive.
    #[inline]
    pub(crate) fn note_marks(&self) {
        self.marks.store(true, Ordering::Relaxed);
    }

    /// Whether there may be markers.
    #[inline]
    pub(crate) fn has_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// There may be markers from now on. The address-space lock is held; a caller of [`Self::has_lost`] holds
    /// it exclusive.
    #[inline]
    pub(crate) fn note_lost(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    pub(crate) fn add_tables(&self, count: u64) {
        self.tables.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn remove_tables(&self, count: u64) {
        self.tables.fetch_sub(count, Ordering::Relaxed);
    }
}
