//! Answers at the edges: a group that is not there, a file system without limits, a task that dies as its work is done.

use quire::cpu::CpuId;
use quire::hugetlb::{Charge, GroupCounters, HugeFsLimits, HugeGroup, HugePools, HugeSize, Stopped};
use quire::page_alloc::AllocatorConfig;

use crate::hugetlb::support::{BOTH, GIB, two_nodes, with_empty_pools};
use crate::watched::Watched;
use testkit::ranges_of;

#[test]
fn no_group_has_no_limit_and_nothing_charged() {
    with_empty_pools(|_, pools| {
        for size in HugeSize::ALL {
            let shown = pools.group_counters(HugeGroup::NONE, size, Charge::Usage);
            assert_eq!(shown, GroupCounters { current: 0, max: u64::MAX });
        }
    });
}

#[test]
fn a_file_system_without_limits_keeps_nothing() {
    assert_eq!(HugeFsLimits::default(), HugeFsLimits { max: u64::MAX, min: 0 });
}

/// The request is complete: a task that dies in the meantime interrupts nothing.
#[test]
fn a_task_that_dies_with_its_last_page_was_not_interrupted() {
    let hosted = two_nodes(3 * GIB).build().expect("the host refused a machine");
    let machine = Watched::new(&hosted);
    hosted.run_on(CpuId(0), || {
        let pages =
            hosted::raw::page_allocator(&machine, &ranges_of(&hosted), AllocatorConfig::default()).unwrap();
        let pools = HugePools::new(&pages).unwrap();
        assert_eq!(pools.resize(&pages, HugeSize::Size1G, BOTH, 2).after, 2);
        machine.dies_after(Some(0));
        let done = pools.demote(&pages, BOTH, 1);
        assert_eq!((done.done, done.stopped), (1, None));
        let done = pools.demote(&pages, BOTH, 2);
        assert_eq!((done.done, done.stopped), (1, Some(Stopped::Interrupted)));
        machine.dies_after(None);
        for size in HugeSize::ALL {
            let _ = pools.resize(&pages, size, BOTH, 0);
        }
        pools.validate(&pages).unwrap();
        pages.validate().unwrap();
    });
}
