//! `/sys/devices/system/node/node*/{meminfo,vmstat}`.

use core::fmt::{Result, Write};

use quire::manager::MemoryManager;
use quire::page_alloc::ZoneInfo;
use quire::platform::Platform;

/// A node's `meminfo`, without the rows for kinds of contents, which Quire does not count by node.
///
/// # Errors
/// Those of the writer.
pub fn node_meminfo<P: Platform>(out: &mut dyn Write, manager: &MemoryManager<'_, P>, node: u8) -> Result {
    let zones = || zones(manager, node);
    let pages = |of: fn(&ZoneInfo) -> u64| zones().map(|zone| of(&zone)).sum::<u64>();
    let total = pages(|zone| zone.managed - zone.descriptors);
    let free = pages(|zone| zone.free + zone.cached);
    let pools = manager.huge_pools();
    let pool = pools.node_info(manager.pages(), pools.default_size(), node);
    let rows = [("MemTotal", total), ("MemFree", free), ("MemUsed", total.saturating_sub(free))];
    for (name, pages) in rows {
        writeln!(out, "Node {node} {name}:{:>width$} kB", pages * 4, width = 23 - name.len())?;
    }
    let rows = [("Total", pool.total), ("Free", pool.free), ("Surp", pool.surplus)];
    for (name, pages) in rows {
        let name_width = name.len() + 1;
        writeln!(out, "Node {node} HugePages_{name}:{pages:>width$}", width = 12 - name_width)?;
    }
    Ok(())
}

/// A node's `vmstat`: the counters that Quire keeps by node.
///
/// # Errors
/// Those of the writer.
pub fn node_vmstat<P: Platform>(out: &mut dyn Write, manager: &MemoryManager<'_, P>, node: u8) -> Result {
    let free = zones(manager, node).map(|zone| zone.free + zone.cached).sum::<u64>();
    let zeroed = zones(manager, node).map(|zone| zone.zeroed).sum::<u64>();
    writeln!(out, "nr_free_pages {free}\nnr_zeroed_pages {zeroed}")
}

fn zones<P: Platform>(manager: &MemoryManager<'_, P>, node: u8) -> impl Iterator<Item = ZoneInfo> {
    manager.pages().zone_info().filter(move |zone| zone.node == node)
}
