//! Large folios: `/sys/kernel/mm/transparent_hugepage`.

use alloc::format;
use core::fmt::{self, Write};

use quire::addr::Order;
use quire::vm::Collapser;
use quire_interop::proc::TransparentHuge;

use super::settings::SETTINGS;
use super::{List, number};
use crate::errno::Errno;
use crate::memory::manager::manager;

const FOLDER: &str = "/sys/kernel/mm/transparent_hugepage";

pub(super) fn add(list: &mut List) {
    add_enabled(list, format!("{FOLDER}/enabled"), None);
    for (order, kib) in TransparentHuge::sizes() {
        add_enabled(list, format!("{FOLDER}/hugepages-{kib}kB/enabled"), Some(order));
    }
    list.text(format!("{FOLDER}/hpage_pmd_size"), |out| writeln!(out, "{}", Order::BLOCK.bytes()));
    // What Quire always does: a fault does not wait for memory to be compacted, faults on shared memory bring in
    // single pages, and no page of zeroes is larger than one.
    fixed(list, "defrag", "always defer defer+madvise madvise [never]");
    fixed(list, "shmem_enabled", "always within_size advise [never] deny force");
    fixed(list, "use_zero_page", "0");
    add_khugepaged(list);
}

fn add_enabled(list: &mut List, path: alloc::string::String, order: Option<Order>) {
    let show = move |out: &mut dyn Write| {
        let huge = *SETTINGS.huge.lock();
        huge.write(out, order)
    };
    list.control(path, show, move |text| {
        let mut huge = SETTINGS.huge.lock();
        huge.choose(order, text).map_err(|_| Errno::EINVAL)?;
        manager().set_folio_policy(huge.policy(manager().folio_policy()));
        Ok(())
    });
}

/// A choice that cannot be changed: what is chosen may be written again.
fn fixed(list: &mut List, name: &str, text: &'static str) {
    let chosen =
        text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or(text, |(name, _)| name);
    list.control(
        format!("{FOLDER}/{name}"),
        move |out| writeln!(out, "{text}"),
        move |written| if written.trim() == chosen { Ok(()) } else { Err(Errno::EINVAL) },
    );
}

/// A number of the background collapser.
struct Field {
    name: &'static str,
    get: fn(&Collapser) -> u64,
    set: fn(&mut Collapser, u64),
    most: u64,
}

const FIELDS: [Field; 6] = [
    Field {
        name: "pages_to_scan",
        get: |it| it.pages_to_scan,
        set: |it, value| it.pages_to_scan = value,
        most: u32::MAX as u64,
    },
    Field {
        name: "scan_sleep_millisecs",
        get: |it| it.scan_sleep_millisecs,
        set: |it, value| it.scan_sleep_millisecs = value,
        most: u32::MAX as u64,
    },
    Field {
        name: "alloc_sleep_millisecs",
        get: |it| it.alloc_sleep_millisecs,
        set: |it, value| it.alloc_sleep_millisecs = value,
        most: u32::MAX as u64,
    },
    Field {
        name: "max_ptes_none",
        get: |it| it.limits.max_ptes_none as u64,
        set: |it, value| it.limits.max_ptes_none = value as usize,
        most: 511,
    },
    Field {
        name: "max_ptes_swap",
        get: |it| it.limits.max_ptes_swap as u64,
        set: |it, value| it.limits.max_ptes_swap = value as usize,
        most: 511,
    },
    Field {
        name: "max_ptes_shared",
        get: |it| it.limits.max_ptes_shared as u64,
        set: |it, value| it.limits.max_ptes_shared = value as usize,
        most: 511,
    },
];

fn add_khugepaged(list: &mut List) {
    for field in &FIELDS {
        let path = format!("{FOLDER}/khugepaged/{}", field.name);
        list.control(
            path,
            |out| show(out, field.get),
            |text| {
                let value = number(text).ok().filter(|value| *value <= field.most).ok_or(Errno::EINVAL)?;
                (field.set)(SETTINGS.khugepaged.lock().get_or_insert_default(), value);
                Ok(())
            },
        );
    }
    let counts: [(&str, fn(&Collapser) -> u64); 2] =
        [("pages_collapsed", |it| it.pages_collapsed), ("full_scans", |it| it.full_scans)];
    for (name, get) in counts {
        list.text(format!("{FOLDER}/khugepaged/{name}"), move |out| show(out, get));
    }
}

fn show(out: &mut dyn Write, get: fn(&Collapser) -> u64) -> fmt::Result {
    let value = get(SETTINGS.khugepaged.lock().get_or_insert_default());
    writeln!(out, "{value}")
}
