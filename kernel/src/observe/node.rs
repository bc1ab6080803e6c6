//! Nodes: `/sys/devices/system/node`.

use alloc::format;
use core::fmt::{self, Write};

use quire::cpu::CpuId;
use quire::page_alloc::NodeSet;
use quire::platform::FramePlatform;
use quire::stats::Stat;
use quire_interop::proc;

use super::List;
use super::cpu::{write_list, write_mask};
use crate::cpu::area;
use crate::memory::manager::manager;
use crate::memory::platform::MACHINE;

const FOLDER: &str = "/sys/devices/system/node";

/// The numbers of all nodes.
pub(super) fn nodes() -> core::ops::Range<u8> {
    0..manager().pages().requests().node_count() as u8
}

pub(super) fn add(list: &mut List) {
    for name in ["possible", "online", "has_cpu", "has_memory", "has_normal_memory"] {
        list.text(format!("{FOLDER}/{name}"), |out| {
            write_list(out, nodes().map(u64::from))?;
            out.write_char('\n')
        });
    }
    for node in nodes() {
        let file = |name: &str| format!("{FOLDER}/node{node}/{name}");
        list.text(file("meminfo"), move |out| proc::node_meminfo(out, manager(), node));
        list.text(file("vmstat"), move |out| proc::node_vmstat(out, manager(), node));
        list.trigger(file("compact"), move |_| {
            manager().compact(NodeSet::one(node));
            Ok(())
        });
        list.text(file("distance"), move |out| distances(out, node));
        list.text(file("cpulist"), move |out| {
            write_list(out, cpus_of(node))?;
            out.write_char('\n')
        });
        list.text(file("cpumap"), move |out| {
            write_mask(out, cpus_of(node), area::count())?;
            out.write_char('\n')
        });
    }
    if nodes().len() == 1 {
        // Quire counts these for the machine as a whole.
        list.text(format!("{FOLDER}/node0/numastat"), numastat);
    }
}

fn cpus_of(node: u8) -> impl Iterator<Item = u64> {
    (0..area::count() as u32).filter(move |cpu| MACHINE.node_of(CpuId(*cpu)) == node).map(u64::from)
}

fn distances(out: &mut dyn Write, node: u8) -> fmt::Result {
    for (at, other) in nodes().enumerate() {
        let gap = if at == 0 { "" } else { " " };
        write!(out, "{gap}{}", MACHINE.node_distance(node, other))?;
    }
    out.write_char('\n')
}

fn numastat(out: &mut dyn Write) -> fmt::Result {
    let rows = [
        ("numa_hit", Stat::NumaHit),
        ("numa_miss", Stat::NumaMiss),
        ("numa_foreign", Stat::NumaForeign),
        ("interleave_hit", Stat::InterleaveHit),
        ("local_node", Stat::NumaLocal),
        ("other_node", Stat::NumaOther),
    ];
    rows.into_iter().try_for_each(|(name, stat)| writeln!(out, "{name} {}", manager().stat(stat)))
}
