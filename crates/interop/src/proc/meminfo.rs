//! `/proc/meminfo`.

use core::fmt::{Result, Write};

use quire::manager::{Meminfo, MemoryManager};
use quire::platform::Platform;
use quire::stats::Stat;

use super::columns::{row, row_kib};

/// An amount of memory in KiB.
pub type Kib = u64;

/// What only the kernel knows of its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KernelMemory {
    /// Blocks of devices that are cached outside files (`Buffers`).
    pub buffers: Kib,
    /// Swap space, and how much of it is free (`SwapTotal`, `SwapFree`).
    pub swap: (Kib, Kib),
    /// Stacks of tasks in the kernel (`KernelStack`).
    pub stacks: Kib,
    /// How much memory programs may have charged when overcommit is refused (`CommitLimit`), and how much they have
    /// charged (`Committed_AS`; [`is_charged`](super::is_charged)).
    pub commit: (Kib, Kib),
    /// The kernel's area for mappings, and how much of it is mapped (`VmallocTotal`, `VmallocUsed`).
    pub mappings: (Kib, Kib),
    /// Memory that each CPU has for itself (`Percpu`).
    pub per_cpu: Kib,
    /// The direct map by the size of its pages: 4 KiB, 2 MiB, 1 GiB (`DirectMap4k` and so on).
    pub direct_map: [Kib; 3],
}

/// `/proc/meminfo`, without the rows for what Quire does not have: lists of recently used pages, a swap cache.
///
/// # Errors
/// Those of the writer.
pub fn meminfo<P: Platform>(
    out: &mut dyn Write,
    manager: &MemoryManager<'_, P>,
    kernel: &KernelMemory,
) -> Result {
    let info = manager.meminfo();
    amounts(out, &info, kernel)?;
    kernel_amounts(out, &info, kernel)?;
    let kib = |pages: u64| pages * 4;
    let rows = [
        ("HardwareCorrupted", kib(info.bad)),
        ("AnonHugePages", kib(manager.anon_huge())),
        ("FilePmdMapped", kib(manager.stat(Stat::NrFilePmdMapped))),
    ];
    rows.into_iter().try_for_each(|(name, kib)| row_kib(out, name, kib))?;
    for (name, number) in manager.huge_lines() {
        if name == "Hugetlb" {
            row_kib(out, "Hugepagesize", manager.huge_pools().default_size().bytes() / 1024)?;
            row_kib(out, name, number)?;
        } else {
            row(out, name, number, "")?;
        }
    }
    let sizes = ["DirectMap4k", "DirectMap2M", "DirectMap1G"].into_iter().zip(kernel.direct_map);
    sizes.into_iter().try_for_each(|(name, kib)| row_kib(out, name, kib))
}

/// The rows up to `Shmem`.
fn amounts(out: &mut dyn Write, info: &Meminfo, kernel: &KernelMemory) -> Result {
    for (name, kib) in info.lines() {
        match name {
            "Cached" => {
                row_kib(out, "Buffers", kernel.buffers)?;
                row_kib(out, name, kib)?;
                row_kib(out, "SwapCached", 0)?;
                row_kib(out, "SwapTotal", kernel.swap.0)?;
                row_kib(out, "SwapFree", kernel.swap.1)?;
            }
            "Slab" => return Ok(()),
            _ => row_kib(out, name, kib)?,
        }
    }
    Ok(())
}

/// The rows from `Slab` to `Percpu`.
fn kernel_amounts(out: &mut dyn Write, info: &Meminfo, kernel: &KernelMemory) -> Result {
    let slab = info.slab * 4;
    let rows = [
        // No slab is given back under pressure.
        ("KReclaimable", 0),
        ("Slab", slab),
        ("SReclaimable", 0),
        ("SUnreclaim", slab),
        ("KernelStack", kernel.stacks),
        ("PageTables", info.page_tables * 4),
        ("CommitLimit", kernel.commit.0),
        ("Committed_AS", kernel.commit.1),
        ("VmallocTotal", kernel.mappings.0),
        ("VmallocUsed", kernel.mappings.1),
        ("VmallocChunk", 0),
        ("Percpu", kernel.per_cpu),
    ];
    rows.into_iter().try_for_each(|(name, kib)| row_kib(out, name, kib))
}
