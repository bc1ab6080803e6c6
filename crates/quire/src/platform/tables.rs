//! What page tables need of the machine besides.

use crate::addr::{Frame, VirtRange};
use crate::arch::ProcessorState;
use crate::cpu::CpuSet;

use super::frames::FramePlatform;

/// Which translations a flush removes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushExtent {
    /// Leaf translations of these addresses, one every `stride` bytes (4 KiB, 2 MiB or 1 GiB).
    Range {
        /// The addresses.
        range: VirtRange,
        /// The smallest leaf size among the changed entries, in bytes.
        stride: u64,
    },
    /// Every translation of the address space that is not global.
    AddressSpace,
}

/// A flush of one address space's translations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlushRequest {
    /// The top-level page table that names the address space.
    pub root: Frame,
    /// Which translations to remove.
    pub extent: FlushExtent,
    /// Whether page-table pages were removed, so that entries of paging-structure caches must be flushed too.
    pub tables: bool,
}

/// A machine whose CPUs translate addresses by page tables.
///
/// Six methods have no default: [`processor_state`](Self::processor_state),
/// [`kernel_root`](Self::kernel_root), [`load_root`](Self::load_root), [`flush_local`](Self::flush_local),
/// [`flush_remote_start`](Self::flush_remote_start) and [`flush_remote_wait`](Self::flush_remote_wait).
///
/// # What must a kernel set up first?
///
/// | what | when | where it is described |
/// |---|---|---|
/// | control registers | on each CPU, before it creates the manager or loads a root | [`ProcessorState`] |
/// | a stack deep enough for start-up | before it creates the manager | [`MemoryManager::new`](crate::manager::MemoryManager::new) |
/// | the kernel's half of all roots | before it creates an address space | [`kernel_root`](Self::kernel_root) |
///
/// # Safety
///
/// As for [`FramePlatform`]. Besides, frames are reused after a flush: the memory safety of everything that
/// runs on the machine requires that a flush leaves no translation behind. The state of
/// [`Self::processor_state`] is that of every CPU that loads a root: without it, a store through a read-only
/// leaf may succeed.
pub unsafe trait TablePlatform: FramePlatform {
    /// The state of the calling CPU, by which hardware interprets page tables. A kernel returns
    /// [`ProcessorState::read`], a machine with a modelled MMU [`ProcessorState::modelled`].
    ///
    /// [`MemoryManager::new`](crate::manager::MemoryManager::new) calls it once and refuses a state in which
    /// something is missing. A kernel checks its other CPUs by [`ProcessorState::check`] as it starts them.
    ///
    /// Precondition: pinned, or the machine's only running CPU. Does not block.
    fn processor_state(&self) -> ProcessorState;

    /// The root table of the kernel, whose upper half every root gets when it is created (a new address
    /// space, `fork`), so that the kernel stays mapped whichever root a CPU loads. `None` on a machine whose
    /// roots translate user addresses only: the kernel has a root register of its own, or, as on the hosted
    /// machine, no page table.
    ///
    /// The table belongs to the kernel: memory that the manager was not given, or a frame that the kernel
    /// allocated and never frees. [`direct_map`](FramePlatform::direct_map) must reach it, and all writes to
    /// it must be atomic. Its level is that of [`Config::paging`](crate::manager::Config::paging). The
    /// library reads the upper half and writes nothing. It never follows these entries, and frees none of the
    /// tables that they name.
    ///
    /// From the first address space on, the result and the 256 upper entries must not change, since each
    /// root has copies. Tables below them may. So a kernel fills all 256 entries beforehand, each with a
    /// table of the next level, empty where nothing is mapped yet: 1 MiB of tables. Entries of addresses that
    /// it will never map may stay empty. [`PageTables::validate`](crate::pgtable::PageTables::validate) finds
    /// an entry that changed.
    ///
    /// Linux copies the kernel's half in the same way (`pgd_ctor`). It fills the entries of the vmalloc area
    /// beforehand (`preallocate_vmalloc_pages`), and copies others to all roots when they are added
    /// (`sync_global_pgds`). Before version 5.8 a fault copied missing ones.
    ///
    /// Does not block.
    fn kernel_root(&self) -> Option<Frame>;

    /// Makes `root` the page table of this CPU, or for `None` a table whose user half is empty, such as the
    /// kernel's own. Translations of other address spaces may stay cached; those of `root` must be as fresh
    /// as if it had never left.
    ///
    /// A flush of another root's translations may be asked of this CPU right before and after the call, since
    /// the library takes the CPU for one that runs both. It has nothing to do then, even if the CPU keeps
    /// translations of that root.
    ///
    /// Precondition: pinned. Does not block.
    fn load_root(&self, root: Option<Frame>);

    /// Whether a CPU keeps translations of a root that it leaves, and tells them from those of others:
    /// x86-64's process-context identifiers (PCID). It never changes. Each flush then also takes from CPUs
    /// that have left the address space the right to what they kept. That costs two locked instructions, a
    /// full fence, and an exchange for each 64 CPUs among which some kept translations, and twice that for a
    /// flush of an address space that other CPUs run too.
    ///
    /// Does not block.
    ///
    /// Default: `false`, at no cost.
    #[inline]
    fn keeps_translations(&self) -> bool {
        false
    }

    /// [`Self::load_root`] of a root whose translations, as this CPU had them when it last loaded another root
    /// in its place, may be good still. Calls `is_good` and then loads the root, once: with what it kept if
    /// the answer is `true`, otherwise as [`Self::load_root`] does. What this CPU has of the root under any
    /// other name must go.
    ///
    /// Interrupts are off from before `is_good` is called until the root is loaded, so that a flush which
    /// this CPU is asked for between the two happens after the load. A load that may be undone later is not
    /// enough: the processor walks page tables on its own from the load on, and may reach freed ones.
    ///
    /// Called only where [`Self::keeps_translations`]. Precondition: pinned. Does not block, nor does
    /// `is_good`.
    ///
    /// Default: [`Self::load_root`].
    fn load_kept_root(&self, root: Frame, is_good: impl FnOnce() -> bool) {
        _ = is_good;
        self.load_root(Some(root));
    }

    /// Flushes this CPU's translations. Precondition: pinned; the caller may hold a page-table lock.
    /// Postcondition: this CPU uses no translation of the extent that was cached before the call. Does not
    /// block.
    fn flush_local(&self, request: &FlushRequest);

    /// Starts the same flush on `targets`, without waiting, so that the local flush overlaps it. `targets`
    /// never holds the calling CPU.
    ///
    /// Precondition: pinned; interrupts on. May wait for room in a queue, not for completion.
    fn flush_remote_start(&self, targets: &CpuSet, request: &FlushRequest);

    /// Waits for the last flush that this CPU started. Postcondition: no target CPU uses a translation of the
    /// extent that was cached before the start. Precondition: pinned.
    fn flush_remote_wait(&self, targets: &CpuSet, request: &FlushRequest);

    /// Flushes the kernel's translations of `range` on all CPUs, the calling one included, and waits: leaves
    /// of every size, global ones too, and entries of paging-structure caches. A CPU that is offline, or
    /// sleeps too deeply for interrupts, may be skipped if it flushes all of this before it reads the window
    /// again. Only the window of page descriptors calls it, which exists for comparison.
    ///
    /// Precondition: a task, interrupts on, not pinned by the library, that holds no lock but that of an
    /// address space. Postcondition: no CPU uses a translation of `range` that was cached before the call.
    /// May wait for other CPUs to take an interrupt, and for nothing else.
    ///
    /// Default: panics.
    #[cfg(feature = "published")]
    fn flush_kernel(&self, _range: VirtRange) {
        panic!("a window of page descriptors needs a platform that flushes the kernel's translations")
    }

    /// Tells a secondary MMU (a hypervisor's second-stage tables, a device) that translations of `range` in
    /// the address space of `root` have changed in the page table. After the call, the library relies on the
    /// secondary MMU not using their old frames and rights. Opens a bracket, which
    /// [`Self::secondary_invalidate_end`] closes for the same root and range in the same task. Brackets of
    /// several tasks may be open at once and may overlap.
    ///
    /// Called only for address spaces that have a secondary MMU
    /// ([`Mm::register_secondary`](crate::vm::Mm::register_secondary)), before the CPUs are flushed, whether
    /// or not any CPU runs the address space.
    ///
    /// Precondition: a task, not pinned by the library, that holds no lock but that of the address space.
    /// Postcondition: no access through a copy of a translation of `range` taken before the call is in
    /// progress, or will begin; and no copies are made in `range` until the end of the bracket. A secondary
    /// MMU that walked the page table before the call and has not made its copy yet drops the result and
    /// walks again ([`Mm::translate`](crate::vm::Mm::translate)). May block, but not on a fault of this
    /// address space, whose lock is held.
    ///
    /// Default: nothing, for a machine without secondary MMUs.
    #[inline]
    fn secondary_invalidate_start(&self, _root: Frame, _range: VirtRange) {}

    /// Closes the bracket that [`Self::secondary_invalidate_start`] opened: the CPUs are flushed, and a
    /// secondary MMU may copy what the page table holds now. Preconditions as there. May block likewise.
    ///
    /// Default: nothing, at no cost, for a machine without secondary MMUs.
    #[inline]
    fn secondary_invalidate_end(&self, _root: Frame, _range: VirtRange) {}

    /// Tells a secondary MMU that larger leaves now map `range`, in place of smaller leaves onto the same
    /// frames with the same rights. A hint, given outside every bracket of the calling task, for address
    /// spaces that have a secondary MMU. Copies of the smaller leaves stay good. Larger ones may replace them
    /// without a bracket, by the protocol of a fault: the secondary MMU walks the page table, and drops the
    /// result if a bracket has begun meanwhile. Another task may have changed a leaf already.
    ///
    /// Precondition: a task that holds the address-space lock, for reading or for writing, and no other lock.
    /// So the tables stay until the call returns. May block likewise.
    ///
    /// Default: nothing. Copies of the smaller leaves are then used until they are invalidated.
    #[inline]
    fn secondary_collapse_possible(&self, _root: Frame, _range: VirtRange) {}
}
