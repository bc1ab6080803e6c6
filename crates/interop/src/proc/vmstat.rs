//! `/proc/vmstat`.

use core::fmt::{Result, Write};

use quire::manager::MemoryManager;
use quire::platform::Platform;

/// Linux's counters in Linux's order, as far as programs are known to read them. Those that Quire does not keep are
/// zero, since what they count does not happen: nothing is swapped or merged, no list of pages is scanned.
const LINUX: &[&str] = &[
    "nr_free_pages",
    "nr_inactive_anon",
    "nr_active_anon",
    "nr_inactive_file",
    "nr_active_file",
    "numa_hit",
    "numa_miss",
    "numa_foreign",
    "numa_interleave",
    "numa_local",
    "numa_other",
    "nr_slab_reclaimable",
    "nr_slab_unreclaimable",
    "nr_anon_pages",
    "nr_mapped",
    "nr_file_pages",
    "nr_writeback",
    "nr_shmem",
    "nr_file_pmdmapped",
    "nr_anon_transparent_hugepages",
    "nr_kernel_stack",
    "nr_page_table_pages",
    "nr_swapcached",
    "nr_memmap_pages",
    "pgpgin",
    "pgpgout",
    "pswpin",
    "pswpout",
    "pgalloc_dma32",
    "pgalloc_normal",
    "pgalloc_movable",
    "pgfree",
    "pgactivate",
    "pgdeactivate",
    "pglazyfree",
    "pgfault",
    "pgmajfault",
    "pglazyfreed",
    "pgreuse",
    "pgsteal_kswapd",
    "pgsteal_direct",
    "pgscan_kswapd",
    "pgscan_direct",
    "pgscan_anon",
    "pgscan_file",
    "pgsteal_anon",
    "pgsteal_file",
    "oom_kill",
    "numa_pages_migrated",
    "pgmigrate_success",
    "pgmigrate_fail",
    "thp_migration_success",
    "thp_migration_split",
    "compact_isolated",
    "htlb_buddy_alloc_success",
    "htlb_buddy_alloc_fail",
    "thp_fault_alloc",
    "thp_fault_fallback",
    "thp_collapse_alloc",
    "thp_collapse_alloc_failed",
    "thp_file_mapped",
    "thp_split_page",
    "thp_deferred_split_page",
    "thp_underused_split_page",
    "thp_split_pmd",
    "thp_swpout",
    "swap_ra",
    "swap_ra_hit",
    "nr_tlb_remote_flush",
    "nr_tlb_remote_flush_received",
    "nr_tlb_local_flush_all",
    "nr_tlb_local_flush_one",
];

/// What Linux calls some of Quire's counters.
const OTHER_NAMES: [(&str, &str); 2] = [("nr_memmap_pages", "nr_memmap"), ("pgreuse", "cow_reuse")];

/// `/proc/vmstat`: Linux's counters, then Quire's own. `kernel` are counters that the kernel keeps, by Linux's
/// names: `oom_kill`, `nr_kernel_stack`, `pgpgin` and so on.
///
/// # Errors
/// Those of the writer.
pub fn vmstat<P: Platform>(
    out: &mut dyn Write,
    manager: &MemoryManager<'_, P>,
    kernel: &[(&str, u64)],
) -> Result {
    for &name in LINUX {
        let ours = OTHER_NAMES.iter().find(|(linux, _)| *linux == name).map_or(name, |(_, ours)| *ours);
        let of_kernel = kernel.iter().find(|(of_kernel, _)| *of_kernel == name).map(|(_, value)| *value);
        let value = match name {
            "nr_anon_transparent_hugepages" => manager.anon_huge() / 512,
            _ => of_kernel.or_else(|| value_of(manager, ours)).unwrap_or(0),
        };
        writeln!(out, "{name} {value}")?;
    }
    let is_ours = |name: &str| !LINUX.contains(&name) && OTHER_NAMES.iter().all(|(_, ours)| *ours != name);
    manager
        .vmstat()
        .filter(|(name, _)| is_ours(name))
        .try_for_each(|(name, value)| writeln!(out, "{name} {value}"))
}

fn value_of<P: Platform>(manager: &MemoryManager<'_, P>, name: &str) -> Option<u64> {
    manager.vmstat().find(|(ours, _)| *ours == name).map(|(_, value)| value)
}
