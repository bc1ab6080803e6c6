//! Counters of events and amounts under the names that `/proc/vmstat` uses, one set per CPU.
//!
//! A pinned CPU changes its own set by plain load and store, so an event costs no locked operation. Events of
//! interrupt context are counted later, by the task that finishes its work.

use core::sync::atomic::{AtomicU64, Ordering};

macro_rules! stats {
    ($($(#[doc = $doc:literal])* $(#[cfg($when:meta)])? $variant:ident = $name:literal),* $(,)?) => {
        /// A counted event or amount.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub enum Stat { $($(#[doc = $doc])* $(#[cfg($when)])? $variant),* }

        impl Stat {
            /// Every counter.
            pub const ALL: &'static [Self] = &[$($(#[cfg($when)])? Self::$variant),*];

            /// The name in `/proc/vmstat`, or in its style where Linux has no such counter.
            pub const fn name(self) -> &'static str {
                match self { $($(#[cfg($when)])? Self::$variant => $name),* }
            }
        }
    };
}

stats! {
    /// Frames allocated from a DMA32 zone.
    PgallocDma32 = "pgalloc_dma32",
    /// Frames allocated from a Normal zone.
    PgallocNormal = "pgalloc_normal",
    /// Frames allocated from a Movable zone.
    PgallocMovable = "pgalloc_movable",
    /// Frames freed.
    Pgfree = "pgfree",
    /// Frames allocated from the node that the request's policy names first. The `numa_` counters count
    /// frames (in Linux: calls of any order).
    NumaHit = "numa_hit",
    /// Frames allocated from another node than the policy names first.
    NumaMiss = "numa_miss",
    /// The same frames, counted for the preferred node: the sum over all nodes is the same.
    NumaForeign = "numa_foreign",
    /// Frames allocated from the node whose turn it was under
    /// [`NodePolicy::Interleave`](crate::page_alloc::NodePolicy).
    InterleaveHit = "numa_interleave",
    /// Frames allocated from the nearest node of the running CPU that has memory of a suitable kind.
    NumaLocal = "numa_local",
    /// Frames allocated from any other node.
    NumaOther = "numa_other",
    /// Frames allocated as known to be zero for callers that would have cleared them.
    PgzeroKnown = "pgzero_known",
    /// Frames cleared ahead by idle CPUs.
    PgzeroAhead = "pgzero_ahead",
    /// Requests that no zone could serve.
    AllocFailed = "alloc_failed",
    /// Refills of a per-CPU list.
    PcpRefill = "pcp_refill",
    /// Frames that a per-CPU list gave back.
    PcpDrain = "pcp_drain",
    /// Uses of a per-CPU list of a further level: an interrupt came while the code below it used the first.
    PcpNested = "pcp_nested",
    /// Blocks taken from a pool to be used in small pieces.
    BlockSplit = "block_split",
    /// Blocks that became whole again.
    BlockMerge = "block_merge",
    /// Times that folios were taken from a block of another mobility group.
    MobilityFallback = "mobility_fallback",
    /// Partly used blocks that changed their mobility group.
    MobilityChange = "mobility_change",
    /// Blocks of tainted areas that searches for frames that cannot move looked at.
    MobilityScanned = "mobility_scanned",
    /// Holds of a block's lock to change counts or bitmaps.
    BlockLock = "block_lock",
    /// Huge pages that a pool took from the page allocator.
    HtlbBuddyAllocSuccess = "htlb_buddy_alloc_success",
    /// Times that the allocator had fewer than the pool requested.
    HtlbBuddyAllocFail = "htlb_buddy_alloc_fail",
    /// Holds of a pool's lock.
    HugetlbLock = "hugetlb_lock",
    /// Flushes of the window of page descriptors on all CPUs.
    #[cfg(feature = "published")]
    VmemmapFlush = "vmemmap_flush",
    /// Grace periods before frames of the window were taken while walkers might read them.
    #[cfg(feature = "published")]
    VmemmapGrace = "vmemmap_grace",
    /// Changed entries of the window's page tables: leaves made tables, other frames, other rights to store.
    #[cfg(feature = "published")]
    VmemmapEntry = "vmemmap_entry",
    /// Leaves of 2 MiB of the window that became tables.
    #[cfg(feature = "published")]
    VmemmapSplit = "vmemmap_split",
    /// Frames of the window that were freed.
    #[cfg(feature = "published")]
    VmemmapFree = "vmemmap_free",
    /// Frames allocated for the window after start-up: tables, copies of retained frames, restored frames.
    #[cfg(feature = "published")]
    VmemmapAlloc = "vmemmap_alloc",
    /// Page descriptors of the window, 64 bytes each, written one by one or copied with their frame.
    #[cfg(feature = "published")]
    VmemmapWrite = "vmemmap_write",
    /// Page faults.
    Pgfault = "pgfault",
    /// Page faults that waited for a pager.
    Pgmajfault = "pgmajfault",
    /// Anonymous faults served by a 2 MiB folio.
    ThpFaultAlloc = "thp_fault_alloc",
    /// Faults on pages of files that mapped 2 MiB by one leaf.
    ThpFileMapped = "thp_file_mapped",
    /// Anonymous faults that got a smaller folio than the policy wanted.
    ThpFaultFallback = "thp_fault_fallback",
    /// 2 MiB folios allocated to collapse smaller ones into.
    ThpCollapseAlloc = "thp_collapse_alloc",
    /// Times that no such folio was available.
    ThpCollapseAllocFailed = "thp_collapse_alloc_failed",
    /// Ranges of 2 MiB that were collapsed by copy.
    ThpCollapseCopied = "thp_collapse_copied",
    /// Ranges of 2 MiB of files whose pages were moved into one block.
    ThpCollapseFile = "thp_collapse_file",
    /// Ranges of 2 MiB that mapped one folio in order by small leaves, which one leaf replaced.
    ThpCollapseShape = "thp_collapse_shape",
    /// Pages that a collapse copied, or cleared in place of holes, while other tasks used the range.
    ThpCollapsePages = "thp_collapse_pages",
    /// Pages that a collapse copied again after stores to them, while no CPU could reach the range.
    ThpCollapseRecopied = "thp_collapse_recopied",
    /// Holds of address-space locks for writing for all of these ranges: two each, at the beginning and at
    /// the end; more if tasks stored much meanwhile or changed mappings.
    ThpCollapseRounds = "thp_collapse_rounds",
    /// 2 MiB folios split because most of their frames were zero.
    ThpUnderusedSplitPage = "thp_underused_split_page",
    /// 2 MiB folios that began to wait for a split because a part of them was unmapped.
    ThpDeferredSplitPage = "thp_deferred_split_page",
    /// 2 MiB folios split into smaller ones.
    ThpSplitPage = "thp_split_page",
    /// 2 MiB leaves split into a table.
    ThpSplitPmd = "thp_split_pmd",
    /// Copies made for copy-on-write.
    CowCopy = "cow_copy",
    /// Write-protected pages reused without a copy.
    CowReuse = "cow_reuse",
    /// Page-cache pages mapped around a faulting one.
    FaultAround = "filemap_map_pages",
    /// Pages dropped from `MADV_FREE` ranges.
    Pglazyfreed = "pglazyfreed",
    /// Pages marked by `MADV_FREE`.
    Pglazyfree = "pglazyfree",
    /// Pages of files that reclaim unmapped, or tried to, so that it could drop them.
    PgscanFile = "pgscan_file",
    /// Pages of files that reclaim dropped.
    PgstealFile = "pgsteal_file",
    /// Flushes sent to other CPUs.
    NrTlbRemoteFlush = "nr_tlb_remote_flush",
    /// CPUs to which flushes were sent.
    NrTlbRemoteFlushReceived = "nr_tlb_remote_flush_received",
    /// Local flushes of a whole address space.
    NrTlbLocalFlushAll = "nr_tlb_local_flush_all",
    /// Pages, or larger leaves, of the ranges that local flushes named.
    NrTlbLocalFlushOne = "nr_tlb_local_flush_one",
    /// Flushes skipped because no CPU runs the address space.
    TlbFlushAvoided = "tlb_flush_avoided",
    /// Page-table entries cleared one by one.
    ZapEntry = "zap_entry",
    /// Page-table subtrees detached by one exchange.
    ZapTable = "zap_table",
    /// Page tables that a fork shared between parent and child.
    TableShare = "table_share",
    /// Shared page tables that were copied, or taken over by the last address space with a share.
    TableUnshare = "table_unshare",
    /// Anonymous pages mapped now, each counted in every address space that maps it.
    NrAnonPages = "nr_anon_pages",
    /// Pages of files and shmem mapped now, each counted in every address space that maps it.
    NrMapped = "nr_mapped",
    /// Pages of them mapped by leaves of 2 MiB (Linux counts shmem apart, as `nr_shmem_pmdmapped`).
    NrFilePmdMapped = "nr_file_pmdmapped",
    /// Frames that hold page tables now.
    NrPageTablePages = "nr_page_table_pages",
    /// Frames that hold map counts of PTE-mapped folios of 2 MiB and more.
    NrMapCountPages = "nr_map_count_pages",
    /// Frames that went bad, lost or still part of a folio in use.
    NrHardwareCorrupted = "nr_hardware_corrupted",
    /// Frames of folios that were isolated to be moved.
    CompactIsolated = "compact_isolated",
    /// Frames whose contents were moved, or dropped because they can be read again.
    PgmigrateSuccess = "pgmigrate_success",
    /// Frames that could not be moved.
    PgmigrateFail = "pgmigrate_fail",
    /// 2 MiB folios moved in one piece.
    ThpMigrationSuccess = "thp_migration_success",
    /// Folios moved in pieces because no folio of their size was free.
    ThpMigrationSplit = "thp_migration_split",
    /// Ranges of blocks emptied by moving their contents.
    ContigAllocSuccess = "contig_alloc_success",
    /// Ranges of blocks that could not be emptied because some contents could not be moved.
    ContigAllocFail = "contig_alloc_fail",
    /// Blocks whose records a search for a range to empty looked at.
    ContigScanned = "contig_scanned",
    /// Frames that hold small objects now.
    NrSlab = "nr_slab_unreclaimable",
}

const COUNT: usize = Stat::ALL.len();

/// One CPU's counters.
#[repr(align(64))]
pub struct StatCells([AtomicU64; COUNT]);

impl StatCells {
    /// All zero.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; COUNT])
    }

    /// Counts `count` events. Only on the CPU that owns the set, pinned.
    #[inline]
    pub fn add(&self, stat: Stat, count: u64) {
        let cell = &self.0[stat as usize];
        cell.store(cell.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }

    /// Changes an amount. An amount may grow on one CPU and shrink on another, so a CPU's share wraps, and
    /// only the sum over all CPUs is right. Only on the CPU that owns the set, pinned.
    #[inline]
    pub fn change(&self, stat: Stat, by: i64) {
        let cell = &self.0[stat as usize];
        cell.store(cell.load(Ordering::Relaxed).wrapping_add_signed(by), Ordering::Relaxed);
    }

    /// The current count.
    #[inline]
    pub fn get(&self, stat: Stat) -> u64 {
        self.0[stat as usize].load(Ordering::Relaxed)
    }
}

impl Default for StatCells {
    fn default() -> Self {
        Self::new()
    }
}
