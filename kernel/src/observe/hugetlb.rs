//! The pools of huge pages: `/sys/kernel/mm/hugepages`. Quire has these files, by their paths.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;

use quire::hugetlb::{ControlError, HugeSize, Outcome, Resized, Stopped};
use quire::limits::MAX_NODES;
use quire::page_alloc::NodeSet;

use super::List;
use crate::errno::Errno;
use crate::memory::manager::manager;

const FILES: [&str; 6] = [
    "nr_hugepages",
    "nr_hugepages_mempolicy",
    "nr_overcommit_hugepages",
    "free_hugepages",
    "resv_hugepages",
    "surplus_hugepages",
];

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
    for name in ["demote_size", "demote"] {
        add_file(list, format!("/sys/kernel/mm/hugepages/{gigantic}/{name}"), format!("{gigantic}/{name}"));
    }
    for node in super::node::nodes() {
        for size in HugeSize::ALL {
            for name in NODE_FILES {
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
    let can = |name: &[&str]| name.iter().any(|name| file.ends_with(&format!("/{name}")));
    let (readable, writable) = (
        !can(&["demote"]),
        can(&["nr_hugepages", "nr_hugepages_mempolicy", "nr_overcommit_hugepages", "demote"]),
    );
    let read = file.clone();
    if readable {
        list.text(path.clone(), move |mut out: &mut dyn core::fmt::Write| {
            // The list names files that exist; what is left is that the text does not fit.
            let done = manager().huge_pools().read_file(manager().pages(), &read, &mut out);
            done.map_err(|_| core::fmt::Error)
        });
    }
    if !writable {
        return;
    }
    if readable {
        let added = list.0.last_mut().expect("added just now");
        added.mode = 0o644;
        added.control = Some(Box::new(move |text| write(&file, text)));
    } else {
        list.trigger(path, move |text| write(&file, text));
    }
}

fn write(file: &str, text: &str) -> Result<(), Errno> {
    let (pools, pages) = (manager().huge_pools(), manager().pages());
    let all = NodeSet::first(pages.requests().node_count().min(MAX_NODES));
    let outcome = pools.write_file(pages, all, file, text).map_err(errno)?;
    let size = HugeSize::ALL.into_iter().find(|size| file.starts_with(&folder(*size)));
    if let (Some(size), Outcome::Resized(Resized { stopped: Some(Stopped::OutOfMemory), wanted, .. })) =
        (size, outcome)
    {
        // Tries again, and moves memory out of the way. As in Linux, a pool may stay smaller than asked for, and its
        // file says how large it is.
        let _ = manager().resize_huge(size, all, wanted);
    }
    Ok(())
}

fn errno(error: ControlError) -> Errno {
    match error {
        ControlError::NoSuchFile => Errno::ENOENT,
        ControlError::NotPermitted => Errno::EACCES,
        ControlError::NotANumber => Errno::EINVAL,
        ControlError::NoRoom => Errno::ENOMEM,
    }
}
