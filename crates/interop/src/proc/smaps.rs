//! `/proc/PID/smaps` and `/proc/PID/smaps_rollup`.

use core::fmt::{Result, Write};

use quire::addr::{Order, VirtAddr, VirtRange};
use quire::arch::Protection;
use quire::manager::MemoryManager;
use quire::platform::Platform;
use quire::vm::vma::VmaFlags;
use quire::vm::{FolioPolicy, HugeAdvice, Mm, Usage, UserfaultModes, VmaInfo};

use super::columns::{row, row_kib};
use super::maps::Names;
use super::maps::{each, huge_bytes, is_charged, line, rollup_line};

/// `/proc/PID/smaps`: for each mapping its line of `maps`, and how much of it is in memory.
///
/// # Errors
/// Those of the writer.
pub fn smaps<P: Platform>(
    out: &mut dyn Write,
    manager: &MemoryManager<'_, P>,
    mm: &Mm<'_, P>,
    names: &dyn Names,
) -> Result {
    let (heap, policy) = (mm.heap(), manager.folio_policy());
    each(mm, |vma| {
        line(out, vma, &heap, names)?;
        let page = huge_bytes(vma).unwrap_or(4096);
        row_kib(out, "Size", vma.range.len() / 1024)?;
        row_kib(out, "KernelPageSize", page / 1024)?;
        row_kib(out, "MMUPageSize", page / 1024)?;
        rows(out, &mm.usage(vma.range), false)?;
        row(out, "THPeligible", u64::from(takes_large_folios(vma, &policy)), "")?;
        flags(out, vma)
    })
}

/// `/proc/PID/smaps_rollup`: the sum over all mappings. All is zero for an empty address space.
///
/// # Errors
/// Those of the writer.
pub fn smaps_rollup<P: Platform>(out: &mut dyn Write, mm: &Mm<'_, P>) -> Result {
    let start = mm.next_vma(VirtAddr(0)).map_or(VirtAddr(0), |first| first.range.start);
    let (mut end, mut usage) = (start, Usage::default());
    each(mm, |vma| {
        usage += mm.usage(vma.range);
        end = vma.range.end;
        Ok(())
    })?;
    rollup_line(out, VirtRange::new(start, end))?;
    rows(out, &usage, true)
}

fn rows(out: &mut dyn Write, usage: &Usage, rollup: bool) -> Result {
    let kib = |share: u64| share >> 22;
    for (name, number) in usage.lines() {
        row_kib(out, name, number)?;
        if name == "Pss" {
            row_kib(out, "Pss_Dirty", kib(usage.pss_dirty))?;
            if rollup {
                row_kib(out, "Pss_Anon", kib(usage.pss_anon))?;
                row_kib(out, "Pss_File", kib(usage.pss - usage.pss_anon - usage.pss_shmem))?;
                row_kib(out, "Pss_Shmem", kib(usage.pss_shmem))?;
            }
        }
        if name == "Anonymous" {
            // No pages are merged.
            row_kib(out, "KSM", 0)?;
        }
        if name == "Private_Hugetlb" {
            // No page is swapped out.
            row_kib(out, "Swap", 0)?;
            row_kib(out, "SwapPss", 0)?;
        }
    }
    Ok(())
}

/// Whether a fault may bring in a folio of more than one page.
fn takes_large_folios(vma: &VmaInfo, policy: &FolioPolicy) -> bool {
    let allowed = policy.allowed(vma.advice, vma.folios);
    let fits = |order: &Order| {
        let start = vma.range.start.align_up(order.bytes());
        start.is_some_and(|start| start.0.saturating_add(order.bytes()) <= vma.range.end.0)
    };
    let mut orders = (1..=Order::GIGANTIC.get()).filter_map(Order::new);
    vma.file.is_none() && orders.any(|order| allowed.contains(order) && fits(&order))
}

/// `VmFlags`: two letters for each property, in the order of Linux's bits.
fn flags(out: &mut dyn Write, vma: &VmaInfo) -> Result {
    let (may, has) = (vma.may, |flag| vma.flags.contains(flag));
    let all = [
        ("rd", vma.protection.contains(Protection::READ)),
        ("wr", vma.protection.contains(Protection::WRITE)),
        ("ex", vma.protection.contains(Protection::EXEC)),
        ("sh", has(VmaFlags::SHARED)),
        ("mr", may.contains(Protection::READ)),
        ("mw", may.contains(Protection::WRITE)),
        ("me", may.contains(Protection::EXEC)),
        ("ms", has(VmaFlags::SHARED)),
        ("gd", has(VmaFlags::GROWS_DOWN)),
        ("um", vma.handler.contains(UserfaultModes::MISSING)),
        ("uw", vma.handler.contains(UserfaultModes::WRITE_PROTECT)),
        ("lo", has(VmaFlags::LOCKED)),
        ("lf", has(VmaFlags::LOCKED) && has(VmaFlags::LOCK_ON_FAULT)),
        ("ac", is_charged(vma)),
        ("nr", has(VmaFlags::NO_RESERVE)),
        ("ht", huge_bytes(vma).is_some()),
        ("hg", vma.advice == HugeAdvice::Huge),
        ("nh", vma.advice == HugeAdvice::NoHuge),
        ("ui", vma.handler.contains(UserfaultModes::MINOR)),
    ];
    out.write_str("VmFlags: ")?;
    for (name, _) in all.into_iter().filter(|(_, set)| *set) {
        write!(out, "{name} ")?;
    }
    out.write_str("\n")
}
