//! Pages that a pool allocates for a fault, some of whose memory is known to be zero.

use hosted::HostedConfig;
use quire::addr::VirtAddr;
use quire::hugetlb::HugeSize::{Size1G, Size2M};
use quire::page_alloc::{NodeSet, Zeroes};
use quire::stats::Stat;
use quire::vm::{Access, MapRequest};

use crate::hugetlb::support::GIB;
use crate::hugetlb::world::{BASE, HUGE, private};
use crate::hugetlb::zeroes::{resize, touch, with_zeroes};

/// The fault clears what is not zero, and all else counts as known.
#[test]
fn a_page_that_comes_in_part_zero_is_cleared_where_it_is_not() {
    let machine = HostedConfig::new(2 * GIB).build().unwrap();
    let zeroes = Zeroes { verify: false, ..Zeroes::default() };
    with_zeroes(&machine, &machine, true, zeroes, |manager| {
        let (pools, pages) = (manager.huge_pools(), manager.pages());
        // A few blocks of the machine's only page of 1 GiB are used.
        resize(manager, Size1G, 1);
        assert_eq!(pools.demote(pages, NodeSet::ALL, 1).done, 1);
        touch(&machine, manager, Size2M, 5);
        assert_eq!(pools.promote(pages, NodeSet::ALL, 1).done, 1);
        resize(manager, Size1G, 0);
        pools.set_overcommit(pages, Size1G, 1);
        let mm = manager.new_mm().unwrap();
        let request = MapRequest { len: GIB, huge: Some(Size1G), noreserve: true, ..private(BASE, 1) };
        mm.mmap(&request).unwrap();
        let counts =
            || [machine.counters().bytes_cleared / HUGE, pages.lists().stat(Stat::PgzeroKnown) / 512];
        let before = counts();
        mm.fault(VirtAddr(BASE), Access::Write).unwrap();
        let after = counts();
        let [cleared, known] = [0, 1].map(|at| after[at] - before[at]);
        assert!((5..=11).contains(&cleared), "{cleared} blocks");
        assert_eq!(cleared + known, 512);
        mm.exit();
        assert_eq!(pools.info(pages, Size1G).total, 0, "a surplus page leaves the pool");
    });
}
