//! The cost of pages that leave a pool of huge pages.

use hosted::HostedConfig;
use pins::Counting;
use quire::cpu::CpuId;
use quire::hugetlb::HugeSize;
use quire::limits::HUGE_BATCH;
use quire::manager::Config;
use quire::page_alloc::NodeSet;
use testkit::ranges_of;

/// Pages of one batch that are neighbours go back to the region's free blocks under one hold of its lock.
#[test]
fn neighbours_leave_a_pool_together() {
    let machine = HostedConfig::new(1 << 30).build().unwrap();
    machine.run_on(CpuId(0), || {
        let counting = Counting::new(&machine);
        let manager =
            hosted::raw::memory_manager(&counting, &ranges_of(&machine), &Config::default()).unwrap();
        let resize = |pages: usize| {
            let done = manager.resize_huge(HugeSize::Size2M, NodeSet::ALL, pages as u64);
            assert_eq!(done.after, pages as u64);
        };
        resize(HUGE_BATCH);
        let (calls, ()) = counting.during(|| resize(0));
        println!("{HUGE_BATCH} pages: {} holds of the region's lock, {calls:?}", calls.pool_locks);
        assert_eq!(calls.pool_locks, 1);
        manager.validate().unwrap();
    });
}
