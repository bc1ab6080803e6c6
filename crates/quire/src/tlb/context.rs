//! What a flush must know of an address space: its root table and the CPUs that run it.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::ZapStrategy;
use super::kept::KeptCpus;
use super::words::USER_ENTRIES;
use crate::addr::Frame;
use crate::arch::PagingMode;
use crate::cpu::{AtomicCpuSet, CpuId, CpuSet};
use crate::limits::TABLE_ENTRIES;
use crate::platform::TablePlatform;
use crate::sync::Pinned;

/// An address space as hardware knows it: the root of its page tables and the CPUs that use them. Created by
/// [`crate::pgtable::PageTables::create`], destroyed by [`crate::pgtable::PageTables::destroy`].
#[derive(Debug)]
pub struct MmContext {
    root: Frame,
    mode: PagingMode,
    zap: ZapStrategy,
    cpus: AtomicCpuSet,
    /// Unused unless CPUs keep translations of roots that they leave.
    kept: KeptCpus,
    /// Page-table pages of the address space, the root included.
    tables: AtomicU64,
    /// Whether a table was ever shared with another address space.
    shared: AtomicBool,
    /// Whether a leaf was ever marked for a handler.
    marks: AtomicBool,
    /// Whether an entry ever became a marker.
    lost: AtomicBool,
    /// How many secondary MMUs have copies of leaves.
    pub(super) secondaries: AtomicU32,
}

/// A flush under way, of an address space whose translations CPUs may have kept.
pub(super) struct Flushing<'a>(Option<&'a KeptCpus>);

impl Drop for Flushing<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.inspect(|kept| kept.end_flush());
    }
}

impl MmContext {
    /// The context of an empty root table that nothing else names.
    pub(crate) fn new(root: Frame, mode: PagingMode) -> Self {
        Self {
            root,
            mode,
            zap: ZapStrategy::default(),
            cpus: AtomicCpuSet::new(),
            kept: KeptCpus::new(),
            tables: AtomicU64::new(1),
            shared: AtomicBool::new(false),
            marks: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            secondaries: AtomicU32::new(0),
        }
    }

    /// Sets the way in which memory is unmapped.
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

    /// How many entries of `table` belong to the address space: those of the root that translate user
    /// addresses, and all of any other table.
    #[inline]
    pub(crate) fn entries_of(&self, table: Frame) -> usize {
        if table == self.root { USER_ENTRIES } else { TABLE_ENTRIES }
    }

    /// How many levels the tables have.
    #[inline]
    pub fn mode(&self) -> PagingMode {
        self.mode
    }

    /// How its memory is unmapped.
    #[inline]
    pub(crate) fn zap(&self) -> ZapStrategy {
        self.zap
    }

    /// Page-table pages of the address space, the root included. A detached table counts until it is freed, a
    /// shared one in every address space that reaches it.
    #[inline]
    pub fn tables(&self) -> u64 {
        self.tables.load(Ordering::Relaxed)
    }

    /// The running CPU starts to run the address space: from here on it is flushed. Sequentially consistent
    /// with the flushes: one that does not see the CPU changed the tables before the CPU could read them.
    pub fn switch_in<P: TablePlatform>(&self, platform: &P) {
        let pinned = Pinned::new(platform);
        self.cpus.insert(pinned.cpu());
        self.load(platform, pinned.cpu());
    }

    /// Loads the root on a CPU that is in the set already.
    #[inline]
    fn load<P: TablePlatform>(&self, platform: &P, cpu: CpuId) {
        if platform.keeps_translations() && self.kept.may_keep(cpu) {
            return platform.load_kept_root(self.root, || self.kept.take(cpu));
        }
        platform.load_root(Some(self.root));
    }

    /// The running CPU is about to load another root.
    #[inline]
    fn leave<P: TablePlatform>(&self, platform: &P, cpu: CpuId) {
        if platform.keeps_translations() {
            self.kept.leave(cpu);
        }
    }

    /// A flush of the address space begins, and is over when the result is dropped.
    #[inline(always)]
    pub(super) fn begin_flush<P: TablePlatform>(&self, platform: &P) -> Flushing<'_> {
        let kept = platform.keeps_translations().then_some(&self.kept);
        kept.inspect(|kept| kept.begin_flush());
        Flushing(kept)
    }

    /// The running CPU stops running the address space and runs none.
    pub fn switch_out<P: TablePlatform>(&self, platform: &P) {
        let pinned = Pinned::new(platform);
        self.leave(platform, pinned.cpu());
        platform.load_root(None);
        self.cpus.remove(pinned.cpu());
    }

    /// The running CPU switches from this address space directly to `next`, by one load of the root. It is
    /// flushed for both while it may use the translations of either: for `next` from before the load, as in
    /// [`Self::switch_in`], and for this one until after it.
    pub fn switch_to<P: TablePlatform>(&self, next: &Self, platform: &P) {
        if self.root == next.root {
            // The CPU would leave the set for good.
            return;
        }
        let pinned = Pinned::new(platform);
        debug_assert!(
            self.cpus.snapshot().contains(pinned.cpu()),
            "a CPU leaves an address space that it does not run"
        );
        next.cpus.insert(pinned.cpu());
        self.leave(platform, pinned.cpu());
        next.load(platform, pinned.cpu());
        self.cpus.remove(pinned.cpu());
    }

    /// The CPUs that run the address space now.
    #[inline]
    pub fn running(&self) -> CpuSet {
        self.cpus.snapshot()
    }

    /// Whether a CPU, on which the caller is pinned, runs the address space now, and whether any other does.
    #[inline]
    pub(super) fn runs_here_and_elsewhere<P: TablePlatform>(&self, platform: &P, cpu: CpuId) -> (bool, bool) {
        self.cpus.has_and_others(cpu, platform.cpu_count())
    }

    /// Whether more than one CPU runs the address space. The answer may be old.
    #[inline]
    pub(crate) fn runs_on_several<P: TablePlatform>(&self, platform: &P) -> bool {
        self.cpus.has_several(platform.cpu_count())
    }

    #[inline]
    pub(crate) fn has_shared(&self) -> bool {
        self.shared.load(Ordering::Relaxed)
    }

    /// Tables are shared from now on. The caller holds the address-space lock for writing.
    #[inline]
    pub(crate) fn note_shared(&self) {
        self.shared.store(true, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn has_marks(&self) -> bool {
        self.marks.load(Ordering::Relaxed)
    }

    /// Leaves are marked for a handler from now on. The caller holds the address-space lock for writing.
    #[inline]
    pub(crate) fn note_marks(&self) {
        self.marks.store(true, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn has_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// There may be markers from now on. The caller holds the address-space lock; a caller of
    /// [`Self::has_lost`] holds it for writing.
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
