//! Counters of events and amounts under the names that `/proc/vmstat` uses, one set per CPU.
//!
//! A CPU changes its own set by plain load and store while it is pinned, so an event costs no locked
//! operation. Events that interrupt context would count are counted by the task that finishes its work.

use core::sync::atomic::{AtomicU64, Ordering};

macro_rules! stats {
    ($($(#[$doc:meta])* $variant:ident = $name:literal),* $(,)?) => {
        /// An event that is counted.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub enum Stat { $($(#[$doc])* $variant),* }

        impl Stat {
            /// Every counter.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The name in `/proc/vmstat`, or in its style where Linux has no such counter.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }
        }
    };
}

stats! {
    /// Frames handed out from a DMA32 zone.
    PgallocDma32 = "pgalloc_dma32",
    /// Frames handed out from a Normal zone.
    PgallocNormal = "pgalloc_normal",
    /// Frames handed out from a Movable zone.
    PgallocMovable = "pgalloc_movable",
    /// Frames taken back.
    Pgfree = "pgfree",
    /// Frames handed out from the node that the request's policy names first. The `numa_` counters are in
    /// frames (in Linux: in calls, whatever their order).
    NumaHit = "numa_hit",
    /// Frames handed out from another node than the policy names first.
    NumaMiss = "numa_miss",
    /// The same frames, as the node that was meant sees them: summed over all nodes it is the same number.
    NumaForeign = "numa_foreign",
    /// Frames handed out from the node whose turn it was under
    /// [`NodePolicy::Interleave`](crate::page_alloc::NodePolicy).
    InterleaveHit = "numa_interleave",
    /// Frames handed out from the running CPU's nearest node that has memory of a kind that will do.
    NumaLocal = "numa_local",
    /// Frames handed out from another one.
    NumaOther = "numa_other",
    /// Frames handed out as known to be zero to callers that would have cleared them.
    PgzeroKnown = "pgzero_known",
    /// Frames cleared ahead by idle CPUs.
    PgzeroAhead = "pgzero_ahead",
    /// Requests that no zone could serve.
    AllocFailed = "alloc_failed",
    /// Refills of a per-CPU list.
    PcpRefill = "pcp_refill",
    /// Frames that a per-CPU list gave back.
    PcpDrain = "pcp_drain",
    /// Blocks taken from a pool to be used in small pieces.
    BlockSplit = "block_split",
    /// Blocks that became whole again.
    BlockMerge = "block_merge",
    /// Times that folios were taken from a block that serves another mobility group.
    MobilityFallback = "mobility_fallback",
    /// Blocks that changed over from one mobility group to another while parts of them were used.
    MobilityChange = "mobility_change",
    /// Blocks' locks taken to change counts or bitmaps.
    BlockLock = "block_lock",
    /// Huge pages that a pool took from the page allocator.
    HtlbBuddyAllocSuccess = "htlb_buddy_alloc_success",
    /// Times that it had fewer than a pool wanted.
    HtlbBuddyAllocFail = "htlb_buddy_alloc_fail",
    /// Holds of a pool's lock.
    HugetlbLock = "hugetlb_lock",
    /// Flushes of the window of page descriptors on all CPUs.
    VmemmapFlush = "vmemmap_flush",
    /// Grace periods that were let pass before frames of the window were taken from under walkers.
    VmemmapGrace = "vmemmap_grace",
    /// Entries of the window's page tables that were changed: leaves made tables, and leaves that lead
    /// elsewhere or lost or got the right to store.
    VmemmapEntry = "vmemmap_entry",
    /// Leaves of 2 MiB of the window that became tables.
    VmemmapSplit = "vmemmap_split",
    /// Frames of the window that were freed.
    VmemmapFree = "vmemmap_free",
    /// Frames that were taken for the window after start-up: tables, fresh copies of retained frames, and
    /// frames that come back.
    VmemmapAlloc = "vmemmap_alloc",
    /// Page descriptors of the window that were written, 64 bytes each: one by one, or copied with the frame
    /// that they stand in.
    VmemmapWrite = "vmemmap_write",
    /// Page faults.
    Pgfault = "pgfault",
    /// Page faults that waited for a pager.
    Pgmajfault = "pgmajfault",
    /// Anonymous faults served by a 2 MiB folio.
    ThpFaultAlloc = "thp_fault_alloc",
    /// Faults on pages of files that mapped 2 MiB of them by one leaf.
    ThpFileMapped = "thp_file_mapped",
    /// Anonymous faults that fell back to a smaller folio than the policy wanted.
    ThpFaultFallback = "thp_fault_fallback",
    /// 2 MiB folios that were allocated to collapse smaller ones into.
    ThpCollapseAlloc = "thp_collapse_alloc",
    /// Times that there was none.
    ThpCollapseAllocFailed = "thp_collapse_alloc_failed",
    /// Ranges of 2 MiB whose pages became one folio by copy.
    ThpCollapseCopied = "thp_collapse_copied",
    /// Ranges of 2 MiB of files whose pages were moved into one block.
    ThpCollapseFile = "thp_collapse_file",
    /// Ranges of 2 MiB that mapped one folio in order by small leaves and became one leaf.
    ThpCollapseShape = "thp_collapse_shape",
    /// Pages that were copied, or cleared in the place of holes, while others went on using the range.
    ThpCollapsePages = "thp_collapse_pages",
    /// Pages of them that were copied again while no CPU could reach the range, since they had been stored
    /// to.
    ThpCollapseRecopied = "thp_collapse_recopied",
    /// Holds of address-space locks for writing for all of these ranges: two each, one at the beginning and
    /// one at the end, unless much was stored meanwhile or mappings changed.
    ThpCollapseRounds = "thp_collapse_rounds",
    /// 2 MiB folios that were split since most of their frames were zero.
    ThpUnderusedSplitPage = "thp_underused_split_page",
    /// 2 MiB folios that began to wait to be split, since a part of them is unmapped.
    ThpDeferredSplitPage = "thp_deferred_split_page",
    /// 2 MiB folios split into smaller ones.
    ThpSplitPage = "thp_split_page",
    /// 2 MiB leaves split into a table.
    ThpSplitPmd = "thp_split_pmd",
    /// Copies made for copy-on-write.
    CowCopy = "cow_copy",
    /// Write-protected pages taken over without a copy.
    CowReuse = "cow_reuse",
    /// Page-cache pages mapped around a faulting one.
    FaultAround = "filemap_map_pages",
    /// Pages dropped from `MADV_FREE` ranges.
    Pglazyfreed = "pglazyfreed",
    /// Pages marked by `MADV_FREE`.
    Pglazyfree = "pglazyfree",
    /// Pages of files that were unmapped, or tried to be, so that they can be dropped.
    PgscanFile = "pgscan_file",
    /// Pages of files that were dropped because memory was short.
    PgstealFile = "pgsteal_file",
    /// Flushes sent to other CPUs.
    NrTlbRemoteFlush = "nr_tlb_remote_flush",
    /// CPUs to which flushes were sent.
    NrTlbRemoteFlushReceived = "nr_tlb_remote_flush_received",
    /// Local flushes of a whole address space.
    NrTlbLocalFlushAll = "nr_tlb_local_flush_all",
    /// Local flushes of a range.
    NrTlbLocalFlushOne = "nr_tlb_local_flush_one",
    /// Flushes left out because no CPU runs the address space.
    TlbFlushAvoided = "tlb_flush_avoided",
    /// Page-table entries cleared one by one.
    ZapEntry = "zap_entry",
    /// Page-table subtrees detached by one exchange.
    ZapTable = "zap_table",
    /// Page tables that a fork shared between parent and child.
    TableShare = "table_share",
    /// Shared page tables that were copied, or taken over by the last address space that had them.
    TableUnshare = "table_unshare",
    /// Anonymous pages that address spaces map now, each counted where it is mapped.
    NrAnonPages = "nr_anon_pages",
    /// Pages of files and shared anonymous memory that address spaces map now, each counted where it is
    /// mapped.
    NrMapped = "nr_mapped",
    /// Pages of them that leaves of 2 MiB map, of files and of shared anonymous memory (Linux counts these
    /// apart, as `nr_shmem_pmdmapped`).
    NrFilePmdMapped = "nr_file_pmdmapped",
    /// Frames that hold page tables now.
    NrPageTablePages = "nr_page_table_pages",
    /// Frames that hold map counts of folios of 2 MiB and more that are mapped in pieces.
    NrMapCountPages = "nr_map_count_pages",
    /// Frames that went bad, lost or still part of something that is in use.
    NrHardwareCorrupted = "nr_hardware_corrupted",
    /// Folios that were set aside to be moved, in frames.
    CompactIsolated = "compact_isolated",
    /// Frames whose contents were moved elsewhere, or dropped since they can be had again.
    PgmigrateSuccess = "pgmigrate_success",
    /// Frames that were to be moved and were not.
    PgmigrateFail = "pgmigrate_fail",
    /// 2 MiB folios that were moved in one piece.
    ThpMigrationSuccess = "thp_migration_success",
    /// Folios that were moved in pieces, since there was none of their size to move to.
    ThpMigrationSplit = "thp_migration_split",
    /// Ranges of blocks that were emptied by moving what was in them.
    ContigAllocSuccess = "contig_alloc_success",
    /// Ranges of blocks that were to be emptied, and something in them could not be moved.
    ContigAllocFail = "contig_alloc_fail",
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

    /// Counts `count` events. Only the CPU that owns the set, pinned.
    #[inline]
    pub fn add(&self, stat: Stat, count: u64) {
        let cell = &self.0[stat as usize];
        cell.store(cell.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }

    /// Changes an amount. What goes up on one CPU may come down on another, so one CPU's share means nothing
    /// alone: it wraps, and the sum over all is right. Only the CPU that owns the set, pinned.
    #[inline]
    pub fn change(&self, stat: Stat, by: i64) {
        let cell = &self.0[stat as usize];
        cell.store(cell.load(Ordering::Relaxed).wrapping_add_signed(by), Ordering::Relaxed);
    }

    /// What was counted so far.
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
