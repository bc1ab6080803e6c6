//! The pools of huge pages: `/sys/kernel/mm/hugepages`. Quire has these files, by their paths.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;

use quire::hugetlb::HugeSize;
use quire::page_alloc::{NodePolicy, NodeSet};
use quire::platform::FramePlatform;
use quire_interop::proc;

use super::{Control, List, writer};
use crate::cpu::area;
use crate::errno::Errno;
use crate::memory::manager::manager;
use crate::memory::platform::MACHINE;
use crate::task::sched;

const FILES: [&str; 6] = [
    "nr_hugepages",
    "nr_hugepages_mempolicy",
    "nr_overcommit_hugepages",
    "free_hugepages",
    "resv_hugepages",
    "surplus_hugepages",
];

/// More files of pages of 1 GiB.
const DEMOTION: [&str; 2] = ["demote_size", "demote"];

/// Files of a node's folder.
const NODE_FILES: [&str; 3] = ["nr_hugepages", "free_hugepages", "surplus_hugepages"];

pub(super) fn add(list: &mut List) {
    for size in HugeSize::ALL {
        let folder = folder(size);
        for name in FILES {
            add_file(list, format!("/sys/kernel/mm/hugepages/{folder}/{name}"), format!("{folder}/{name}"));
        }
    }
    let gigantic = folder(HugeSize::Size1G);
    for name in DEMOTION {
        add_file(list, format!("/sys/kernel/mm/hugepages/{gigantic}/{name}"), format!("{gigantic}/{name}"));
    }
    for node in super::node::nodes() {
        for size in HugeSize::ALL {
            let more: &[&str] = if size == HugeSize::Size1G { &DEMOTION } else { &[] };
            for name in NODE_FILES.iter().chain(more) {
                let file = format!("node{node}/{}/{name}", folder(size));
                let path = format!("/sys/devices/system/node/node{node}/hugepages/{}/{name}", folder(size));
                add_file(list, path, file);
            }
        }
    }
}

fn folder(size: HugeSize) -> String {
    format!("hugepages-{}kB", size.bytes() / 1024)
}

/// Adds the file that Quire calls `file`.
pub(super) fn add_file(list: &mut List, path: String, file: String) {
    let name = file.rsplit('/').next().unwrap_or_default();
    let readable = name != "demote";
    let writable = !["free_hugepages", "resv_hugepages", "surplus_hugepages"].contains(&name);
    let mode = match (readable, writable) {
        (true, true) => 0o644,
        (true, false) => 0o444,
        (false, _) => 0o200,
    };
    let read = file.clone();
    let text = move |mut out: &mut dyn core::fmt::Write| {
        // The list names files that exist; what is left is that the text does not fit.
        let done = manager().huge_pools().read_file(manager().pages(), &read, &mut out);
        done.map_err(|_| core::fmt::Error)
    };
    let text = readable.then(|| writer(text));
    let control = writable.then(|| Box::new(move |text: &str| write(&file, text)) as Control);
    list.add(&path, mode, text, control, None);
}

/// A pool may stay smaller than was asked for. As in Linux, its file says how large it is.
fn write(file: &str, text: &str) -> Result<(), Errno> {
    let done = proc::write_pool_file(manager(), nodes_of_task(), file, text);
    done.map(|_| ()).map_err(|error| Errno::of(error.errno()))
}

/// The nodes that the task's policy names.
fn nodes_of_task() -> NodeSet {
    let running = sched::current_ref();
    match running.nodes.get() {
        None => NodeSet::ALL,
        Some(NodePolicy::Local) => NodeSet::one(MACHINE.node_of(area::cpu_id())),
        Some(NodePolicy::Preferred(node)) => NodeSet::one(node),
        Some(NodePolicy::Bind(nodes) | NodePolicy::Interleave(nodes) | NodePolicy::PreferredMany(nodes)) => {
            nodes
        }
    }
}
