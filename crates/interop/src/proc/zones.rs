//! `/proc/zoneinfo`, `/proc/buddyinfo` and `/proc/pagetypeinfo`.

use core::fmt::{Result, Write};

use quire::cpu::CpuId;
use quire::manager::MemoryManager;
use quire::page_alloc::{FREE_ORDERS, ZoneInfo, ZoneKind};
use quire::platform::Platform;

const TYPES: [&str; 3] = ["Unmovable", "Movable", "Reclaimable"];

fn name_of(kind: ZoneKind) -> &'static str {
    match kind {
        ZoneKind::Dma32 => "DMA32",
        ZoneKind::Normal => "Normal",
        ZoneKind::Movable => "Movable",
    }
}

/// `/proc/zoneinfo`: each zone with its marks, its amounts, and what is on the lists of each CPU.
///
/// # Errors
/// Those of the writer.
pub fn zoneinfo<P: Platform>(out: &mut dyn Write, manager: &MemoryManager<'_, P>) -> Result {
    manager.pages().zone_info().try_for_each(|zone| zone_text(out, manager, &zone))
}

fn zone_text<P: Platform>(out: &mut dyn Write, manager: &MemoryManager<'_, P>, zone: &ZoneInfo) -> Result {
    let span = manager.pages().zone_span(zone.node, zone.kind);
    writeln!(out, "Node {}, zone {:>8}", zone.node, name_of(zone.kind))?;
    writeln!(out, "  pages free     {}", zone.free)?;
    let rows = [
        ("boost", 0),
        ("min", zone.marks.min),
        ("low", zone.marks.low),
        ("high", zone.marks.high),
        ("spanned", span.count),
        ("present", zone.present),
        ("managed", zone.managed),
        ("cma", 0),
    ];
    rows.into_iter().try_for_each(|(name, pages)| writeln!(out, "        {name:<8} {pages}"))?;
    let [dma32, normal, movable] = zone.low_reserve;
    writeln!(out, "        protection: ({dma32}, {normal}, {movable})")?;
    let rows = [
        ("nr_free_pages", zone.free),
        ("nr_free_pages_blocks", zone.whole_blocks * 512),
        ("nr_zeroed_pages", zone.zeroed),
    ];
    rows.into_iter().try_for_each(|(name, pages)| writeln!(out, "      {name:<12} {pages}"))?;
    writeln!(out, "  pagesets")?;
    for cpu in 0..manager.pages().platform().cpu_count() {
        let count = manager.pages().cached_on(CpuId(cpu as u32), zone.node, zone.kind);
        writeln!(out, "    cpu: {cpu}\n              count:    {count}")?;
    }
    writeln!(out, "  node_unreclaimable:  0\n  start_pfn:           {}", span.start.0)
}

/// `/proc/buddyinfo`: how many free groups of each order each zone has.
///
/// # Errors
/// Those of the writer.
pub fn buddyinfo<P: Platform>(out: &mut dyn Write, manager: &MemoryManager<'_, P>) -> Result {
    for zone in manager.pages().free_groups() {
        write!(out, "Node {}, zone {:>8} ", zone.node, name_of(zone.kind))?;
        zone.sum().iter().try_for_each(|count| write!(out, "{count:>6} "))?;
        out.write_str("\n")?;
    }
    Ok(())
}

/// `/proc/pagetypeinfo`: the same for each mobility group, and the blocks of each. After Linux's lines, the areas
/// of 1 GiB, and those of them with frames that cannot move.
///
/// # Errors
/// Those of the writer.
pub fn pagetypeinfo<P: Platform>(out: &mut dyn Write, manager: &MemoryManager<'_, P>) -> Result {
    write!(
        out,
        "Page block order: 9\nPages per block:  512\n\n{:<43} ",
        "Free pages count per migrate type at order"
    )?;
    (0..FREE_ORDERS).try_for_each(|order| write!(out, "{order:>6} "))?;
    out.write_str("\n")?;
    for zone in manager.pages().free_groups() {
        for (name, groups) in TYPES.into_iter().zip(&zone.groups) {
            write!(out, "Node {:>4}, zone {:>8}, type {name:>12} ", zone.node, name_of(zone.kind))?;
            groups.iter().try_for_each(|count| write!(out, "{count:>6} "))?;
            out.write_str("\n")?;
        }
    }
    write!(out, "\n{:<23}", "Number of blocks type ")?;
    TYPES.iter().try_for_each(|name| write!(out, "{name:>12} "))?;
    out.write_str("\n")?;
    for zone in manager.pages().free_groups() {
        write!(out, "Node {}, zone {:>8} ", zone.node, name_of(zone.kind))?;
        zone.blocks.iter().try_for_each(|count| write!(out, "{count:>12} "))?;
        out.write_str("\n")?;
    }
    write!(out, "\n{:<23}{:>12} {:>12} \n", "Number of areas of 1 GiB", "Complete", "Tainted")?;
    for zone in manager.pages().free_groups() {
        let (node, kind) = (zone.node, name_of(zone.kind));
        writeln!(out, "Node {node}, zone {kind:>8} {:>12} {:>12} ", zone.areas, zone.tainted)?;
    }
    Ok(())
}
