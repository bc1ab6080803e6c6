//! Large folios: `/sys/kernel/mm/transparent_hugepage`.

use alloc::format;
use core::fmt::Write;

use quire::addr::Order;
use quire_interop::proc::TransparentHuge;

use super::List;
use super::settings::SETTINGS;
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
