//! What was reserved stays reserved: beside verbs that fail, pages that move, and other tasks' mappings.

use hosted::HostedConfig;
use quire::addr::VirtAddr;
use quire::error::MmError;
use quire::hugetlb::HugeSize::Size1G;
use quire::hugetlb::PoolInfo;
use quire::vm::{Advice, MapRequest};

use crate::hugetlb::support::GIB;
use crate::hugetlb::world::{BASE, HUGE, info, load, private, run, store, with_config};

/// `MADV_DONTNEED` finds no page to reserve for one that a child shares. A page beside it, of which a piece was
/// stored to, keeps its contents.
#[test]
fn a_refused_dontneed_keeps_a_page_in_pieces() {
    let machine = HostedConfig::new(4 * GIB);
    with_config(machine, Size1G, 2, |machine, manager| {
        run(manager, |mm| {
            let pages = MapRequest { len: 2 * GIB, huge: Some(Size1G), ..private(BASE, 1) };
            // Pages that are known to be zero would be mapped whole.
            mm.mmap(&pages).unwrap();
            [BASE, BASE + GIB].into_iter().for_each(|at| store(machine, mm, at, 1).unwrap());
            mm.munmap(VirtAddr(BASE), 2 * GIB).unwrap();
            mm.mmap(&pages).unwrap();
            store(machine, mm, BASE + GIB, 3).unwrap();
            let child = mm.fork().unwrap();
            store(machine, mm, BASE + 77 * HUGE, 5).unwrap();
            assert_eq!(mm.rss().huge, (GIB + HUGE) / 4096, "one page is in pieces");
            assert_eq!(mm.madvise(VirtAddr(BASE), 2 * GIB, Advice::DontNeed), Err(MmError::NoMemory));
            assert_eq!(load(machine, mm, BASE + 77 * HUGE), Ok(5));
            assert_eq!(load(machine, mm, BASE + GIB), Ok(3));
            child.exit();
            mm.madvise(VirtAddr(BASE), 2 * GIB, Advice::DontNeed).unwrap();
            assert_eq!(info(manager, Size1G), PoolInfo { total: 2, free: 2, reserved: 2, surplus: 0 });
        });
    });
}
