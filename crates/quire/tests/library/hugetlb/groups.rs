//! Limits for groups of processes.

use std::collections::HashSet;
use std::sync::Mutex;

use hosted::{FailurePlan, HostedConfig};
use quire::cpu::CpuId;
use quire::hugetlb::{
    Charge, GroupCounters, GroupEvents, HugeGroup, HugeGroupError, HugePools, HugeSize, LimitReached,
};
use quire::limits::{HUGE_GROUPS_AT_START, MAX_HUGE_GROUPS};

use crate::hugetlb::support::{MIB, two_nodes, with_empty_pools};

use Charge::{Reservation, Usage};
use HugeSize::{Size1G, Size2M};

#[test]
fn a_charge_counts_in_every_group_or_in_none() {
    with_empty_pools(|pages, pools| {
        let root = pools.make_group(pages, HugeGroup::NONE).unwrap();
        let (left, right) = (pools.make_group(pages, root).unwrap(), pools.make_group(pages, root).unwrap());
        pools.set_group_max(root, Size2M, Usage, 10);
        pools.set_group_max(left, Size2M, Usage, 8);
        pools.charge(left, Size2M, Usage, 8).unwrap();
        assert_eq!(pools.charge(left, Size2M, Usage, 1), Err(LimitReached));
        pools.charge(right, Size2M, Usage, 2).unwrap();
        assert_eq!(pools.charge(right, Size2M, Usage, 1), Err(LimitReached), "the root's limit");
        let shown = |group: HugeGroup| pools.group_counters(group, Size2M, Usage);
        assert_eq!(shown(left), GroupCounters { current: 8, max: 8 });
        assert_eq!(shown(right), GroupCounters { current: 2, max: u64::MAX });
        assert_eq!(shown(root), GroupCounters { current: 10, max: 10 });
        // A refusal is an event of the group whose process was refused, whichever limit it met.
        let events = |group: HugeGroup| pools.group_events(group, Size2M);
        assert_eq!(events(left), GroupEvents { all: 1, own: 1 });
        assert_eq!(events(right), GroupEvents { all: 1, own: 1 });
        assert_eq!(events(root), GroupEvents { all: 2, own: 0 });
        assert_eq!(pools.group_events(root, Size1G), GroupEvents::default());
        pools.uncharge(left, Size2M, Usage, 5);
        pools.charge(right, Size2M, Usage, 5).unwrap();
        assert_eq!((shown(left).current, shown(right).current, shown(root).current), (3, 7, 10));
        // Sizes and kinds are charged separately.
        pools.charge(right, Size1G, Usage, 100).unwrap();
        pools.charge(right, Size2M, Reservation, u64::MAX).unwrap();
        assert_eq!(pools.charge(right, Size2M, Reservation, 1), Err(LimitReached), "numbers do not wrap");
        // A limit below the present charge refuses new charges.
        pools.set_group_max(right, Size2M, Usage, 1);
        assert_eq!(pools.charge(right, Size2M, Usage, 1), Err(LimitReached));
        assert_eq!(shown(right).current, 7);
        // `NONE` is not charged and never refused.
        pools.charge(HugeGroup::NONE, Size2M, Usage, u64::MAX).unwrap();
    });
}

#[test]
fn charges_of_several_threads_never_pass_the_limit() {
    with_empty_pools(|pages, pools| {
        let root = pools.make_group(pages, HugeGroup::NONE).unwrap();
        pools.set_group_max(root, Size2M, Usage, 100);
        let below = [pools.make_group(pages, root).unwrap(), pools.make_group(pages, root).unwrap()];
        std::thread::scope(|scope| {
            for group in below {
                scope.spawn(move || {
                    let mut charged = 0;
                    for round in 0..20_000_u64 {
                        if round % 3 == 2 && charged > 0 {
                            pools.uncharge(group, Size2M, Usage, charged);
                            charged = 0;
                        } else if pools.charge(group, Size2M, Usage, 30).is_ok() {
                            charged += 30;
                        }
                        assert!(pools.group_counters(root, Size2M, Usage).current <= 100);
                    }
                    pools.uncharge(group, Size2M, Usage, charged);
                });
            }
        });
        assert_eq!(pools.group_counters(root, Size2M, Usage).current, 0);
    });
}

/// The charges of a removed group stay with its parent until they end; then its number is free.
#[test]
fn a_removed_group_is_there_until_its_charges_are_not() {
    with_empty_pools(|pages, pools| {
        let root = pools.make_group(pages, HugeGroup::NONE).unwrap();
        let child = pools.make_group(pages, root).unwrap();
        pools.charge(child, Size2M, Usage, 3).unwrap();
        pools.remove_group(child);
        assert_eq!(pools.group_counters(root, Size2M, Usage).current, 3);
        let others: Vec<_> = (2..MAX_HUGE_GROUPS).map(|_| pools.make_group(pages, root).unwrap()).collect();
        let different: HashSet<_> = others.iter().map(|group| format!("{group:?}")).collect();
        assert_eq!(different.len(), others.len(), "each has a number of its own");
        assert!(!others.contains(&child));
        assert_eq!(pools.make_group(pages, root), Err(HugeGroupError::TooMany), "its number is not free");
        pools.uncharge(child, Size2M, Usage, 3);
        assert_eq!(pools.group_counters(root, Size2M, Usage).current, 0);
        pools.set_group_max(child, Size2M, Usage, 1);
        let again = pools.make_group(pages, HugeGroup::NONE).unwrap();
        assert_eq!(again, child);
        assert_eq!(
            pools.group_counters(again, Size2M, Usage),
            GroupCounters { max: u64::MAX, ..Default::default() }
        );
        // A parent outlives its children.
        pools.remove_group(root);
        assert_eq!(pools.make_group(pages, HugeGroup::NONE), Err(HugeGroupError::TooMany));
        others.into_iter().chain([again]).for_each(|group| pools.remove_group(group));
        (0..MAX_HUGE_GROUPS).for_each(|_| _ = pools.make_group(pages, HugeGroup::NONE).unwrap());
        assert_eq!(pools.make_group(pages, HugeGroup::NONE), Err(HugeGroupError::TooMany));
    });
}

/// More groups than have memory from the start take some: a hundred frames are enough for all, and where there are
/// none, no group is made and none is lost.
#[test]
fn groups_take_memory_as_they_become_more() {
    testkit::with_allocator(HostedConfig::new(4 << 20), |machine, pages| {
        let pools = HugePools::new(pages).unwrap();
        let used = || pages.memory_info().metadata;
        let before = used();
        let first: Vec<_> =
            (0..HUGE_GROUPS_AT_START).map(|_| pools.make_group(pages, HugeGroup::NONE).unwrap()).collect();
        assert_eq!(used(), before, "these had memory");
        machine.set_failures(FailurePlan::From(0));
        assert_eq!(pools.make_group(pages, HugeGroup::NONE), Err(HugeGroupError::NoMemory));
        machine.set_failures(FailurePlan::Off);
        let last = *first.last().unwrap();
        let next = pools.make_group(pages, last).unwrap();
        let bytes = 2 * HUGE_GROUPS_AT_START * 128;
        assert!((1..=(bytes / 4096) as u64).contains(&(used() - before)), "{}", used() - before);
        pools.charge(next, Size1G, Reservation, 5).unwrap();
        assert_eq!(pools.group_counters(last, Size1G, Reservation).current, 5);
        assert_eq!(pools.group_counters(first[0], Size1G, Reservation).current, 0);
    });
}

/// Groups are made and removed by several CPUs at once, and no two have the same number.
#[test]
fn groups_of_several_cpus_are_different() {
    let machine = two_nodes(16 * MIB).build().unwrap();
    let make = || {
        let ranges = testkit::ranges_of(&machine);
        hosted::raw::page_allocator(&machine, &ranges, Default::default()).unwrap()
    };
    let pages = machine.run_on(CpuId(0), make);
    let pools = machine.run_on(CpuId(0), || HugePools::new(&pages).unwrap());
    let root = machine.run_on(CpuId(0), || pools.make_group(&pages, HugeGroup::NONE).unwrap());
    let made = Mutex::new(HashSet::new());
    machine.spawn_cpus(2, |_| {
        for round in 0..300 {
            let group = pools.make_group(&pages, root).unwrap();
            assert!(made.lock().unwrap().insert(format!("{group:?}")), "{group:?} is there twice");
            if round % 2 == 0 {
                made.lock().unwrap().remove(&format!("{group:?}"));
                pools.remove_group(group);
            }
        }
    });
    assert_eq!(made.into_inner().unwrap().len(), 300);
}

/// A handle that outlived its group removes no group, so that the parent still knows its other part.
#[test]
fn a_group_that_is_removed_twice_is_counted_once() {
    with_empty_pools(|pages, pools| {
        let parent = pools.make_group(pages, HugeGroup::NONE).unwrap();
        let [stays, first, second] = [(); 3].map(|()| pools.make_group(pages, parent).unwrap());
        pools.remove_group(first);
        pools.remove_group(second);
        assert_eq!(pools.make_group(pages, HugeGroup::NONE), Ok(first), "both places are free, one is used");
        pools.remove_group(second);
        assert_eq!(pools.make_group(pages, HugeGroup::NONE), Ok(second));
        pools.remove_group(parent);
        let other = pools.make_group(pages, HugeGroup::NONE).unwrap();
        assert_ne!(other, parent, "{stays:?} is part of it");
    });
}
