//! Users of huge pages: reservations, surplus, and the effect of a smaller pool.

use hosted::HostedConfig;
use hosted::raw::{RawCounts, RawPages, RawPools};
use quire::error::AllocError;
use quire::hugetlb::{HugeSize::Size2M, Stopped};
use quire::limits::HUGE_BATCH;
use quire::page_alloc::NodeSet;

use crate::hugetlb::support::{BOTH, MIB, two_nodes, with_pools};

#[test]
fn what_was_promised_is_there() {
    with_pools(two_nodes(64 * MIB), |world| {
        let (pools, pages) = (world.pools, world.pages);
        let _ = pools.resize(pages, Size2M, BOTH, 4);
        pools.reserve(pages, Size2M, 3).unwrap();
        assert_eq!(pools.reserve(pages, Size2M, 2), Err(AllocError::OutOfMemory));
        let one = pools.take(pages, Size2M, NodeSet::ALL, false).unwrap();
        assert_eq!(pools.take(pages, Size2M, NodeSet::ALL, false), Err(AllocError::OutOfMemory));
        let reserved: Vec<_> =
            (0..3).map(|_| pools.take(pages, Size2M, NodeSet::ALL, true).unwrap()).collect();
        assert_eq!((world.info(Size2M).free, world.info(Size2M).reserved), (0, 0));
        // A reservation that is returned with its page can be used again.
        pools.give_raw(pages, Size2M, reserved[0], true);
        assert_eq!(world.info(Size2M).reserved, 1);
        let again = pools.take(pages, Size2M, NodeSet::ALL, true).unwrap();
        [one, again, reserved[1], reserved[2]]
            .iter()
            .for_each(|&frame| pools.give_raw(pages, Size2M, frame, false));
        assert_eq!((world.info(Size2M).free, world.info(Size2M).total), (4, 4));
    });
}

#[test]
fn surplus_pages_come_when_there_are_too_few_and_leave_when_they_are_free() {
    with_pools(two_nodes(64 * MIB), |world| {
        let (pools, pages) = (world.pools, world.pages);
        let _ = pools.resize(pages, Size2M, BOTH, 2);
        pools.set_overcommit(pages, Size2M, 3);
        pools.reserve(pages, Size2M, 4).unwrap();
        assert_eq!((world.info(Size2M).total, world.info(Size2M).surplus), (4, 2));
        assert_eq!(pools.reserve(pages, Size2M, 2), Err(AllocError::OutOfMemory));
        assert_eq!(world.info(Size2M).surplus, 2, "the pages of the failed request were freed");
        world.check();
        let last = pools.take(pages, Size2M, NodeSet::ALL, false).unwrap();
        assert_eq!(world.info(Size2M).surplus, 3);
        assert_eq!(pools.take(pages, Size2M, NodeSet::ALL, false), Err(AllocError::OutOfMemory));
        pools.unreserve(pages, Size2M, 4);
        pools.give_raw(pages, Size2M, last, false);
        assert_eq!((world.info(Size2M).total, world.info(Size2M).surplus), (2, 0));
    });
}

/// However many pages are missing, no more than a batch is taken from the page allocator at a time.
#[test]
fn surplus_pages_come_a_batch_at_a_time() {
    with_pools(two_nodes(256 * MIB), |world| {
        let (pools, pages) = (world.pools, world.pages);
        let wanted = HUGE_BATCH as u64 + 2;
        pools.set_overcommit(pages, Size2M, wanted);
        let points = world.machine.counters().reschedule_points;
        pools.reserve(pages, Size2M, wanted).unwrap();
        assert_eq!(world.machine.counters().reschedule_points, points + 2, "others run after each batch");
        let info = world.info(Size2M);
        assert_eq!((info.total, info.surplus, info.reserved), (wanted, wanted, wanted));
        pools.unreserve(pages, Size2M, wanted);
        assert_eq!(world.info(Size2M).total, 0);
    });
}

/// A pool that is made smaller than its use gets surplus pages; growing makes them persistent before it
/// allocates.
#[test]
fn what_is_in_use_when_a_pool_shrinks_becomes_surplus() {
    with_pools(two_nodes(64 * MIB), |world| {
        let (pools, pages) = (world.pools, world.pages);
        let _ = pools.resize(pages, Size2M, BOTH, 10);
        let used: Vec<_> = (0..6).map(|_| pools.take(pages, Size2M, NodeSet::ALL, false).unwrap()).collect();
        pools.reserve(pages, Size2M, 1).unwrap();
        let done = pools.resize(pages, Size2M, BOTH, 2);
        assert_eq!((done.after, done.stopped), (2, Some(Stopped::InUse(5))));
        let info = world.info(Size2M);
        assert_eq!((info.total, info.surplus, info.free, info.reserved), (7, 5, 1, 1));
        let free = pages.memory_info().used;
        assert_eq!(pools.resize(pages, Size2M, BOTH, 5).stopped, None);
        assert_eq!(
            (world.info(Size2M).surplus, pages.memory_info().used),
            (2, free),
            "nothing was allocated"
        );
        used.into_iter().for_each(|frame| pools.give_raw(pages, Size2M, frame, false));
        let info = world.info(Size2M);
        assert_eq!((info.total, info.surplus, info.free), (5, 0, 5));
        pools.unreserve(pages, Size2M, 1);
    });
}

/// A page in a pool cannot be freed, mapped or lost through the page allocator.
#[test]
fn pool_pages_stay_in_their_pool() {
    with_pools(two_nodes(64 * MIB), |world| {
        let (pools, pages) = (world.pools, world.pages);
        let _ = pools.resize(pages, Size2M, BOTH, 1);
        let frame = pools.take(pages, Size2M, NodeSet::ALL, false).unwrap();
        assert_eq!(pages.free_raw(frame, quire::addr::Order::BLOCK), Err(quire::error::FreeError::InUse));
        let mut counter = pages.counts().counter();
        counter.map_large(frame, quire::addr::PageSize::Size2M);
        let unknown = quire::page_alloc::Contents::Unknown;
        assert_eq!(counter.unmap_large_raw(frame, quire::addr::PageSize::Size2M, unknown), 0, "it is held");
        drop(counter);
        pools.give_raw(pages, Size2M, frame, false);
    });
}

/// A mapping that goes gives back as many surplus pages as it had reserved, a batch at a time.
#[test]
fn surplus_pages_leave_a_batch_at_a_time() {
    with_pools(HostedConfig::new(1024 * MIB), |world| {
        let (pools, pages, count) = (world.pools, world.pages, 3 * HUGE_BATCH as u64);
        pools.set_overcommit(pages, Size2M, count);
        pools.reserve(pages, Size2M, count).unwrap();
        let before = world.machine.counters().reschedule_points;
        pools.unreserve(pages, Size2M, count);
        assert!(world.machine.counters().reschedule_points - before >= 3);
        assert_eq!(world.info(Size2M).total, 0);
    });
}
