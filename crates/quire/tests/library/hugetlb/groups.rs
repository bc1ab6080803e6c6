//! Limits for groups of processes.

use quire::hugetlb::{Charge, GroupCounters, HugeGroup, HugeSize, LimitReached, TooManyGroups};
use quire::limits::MAX_HUGE_GROUPS;

use crate::hugetlb::support::with_empty_pools;

use Charge::{Reservation, Usage};
use HugeSize::{Size1G, Size2M};

#[test]
fn a_charge_counts_in_every_group_or_in_none() {
    with_empty_pools(|pools| {
        let root = pools.make_group(HugeGroup::NONE).unwrap();
        let (left, right) = (pools.make_group(root).unwrap(), pools.make_group(root).unwrap());
        pools.set_group_max(root, Size2M, Usage, 10);
        pools.set_group_max(left, Size2M, Usage, 8);
        pools.charge(left, Size2M, Usage, 8).unwrap();
        assert_eq!(pools.charge(left, Size2M, Usage, 1), Err(LimitReached));
        pools.charge(right, Size2M, Usage, 2).unwrap();
        assert_eq!(pools.charge(right, Size2M, Usage, 1), Err(LimitReached), "the root's limit");
        let shown = |group: HugeGroup| pools.group_counters(group, Size2M, Usage);
        assert_eq!(shown(left), GroupCounters { current: 8, max: 8, failures: 1 });
        assert_eq!(shown(right), GroupCounters { current: 2, max: u64::MAX, failures: 0 });
        assert_eq!(shown(root), GroupCounters { current: 10, max: 10, failures: 1 });
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
    with_empty_pools(|pools| {
        let root = pools.make_group(HugeGroup::NONE).unwrap();
        pools.set_group_max(root, Size2M, Usage, 100);
        let below = [pools.make_group(root).unwrap(), pools.make_group(root).unwrap()];
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
    with_empty_pools(|pools| {
        let root = pools.make_group(HugeGroup::NONE).unwrap();
        let child = pools.make_group(root).unwrap();
        pools.charge(child, Size2M, Usage, 3).unwrap();
        pools.remove_group(child);
        assert_eq!(pools.group_counters(root, Size2M, Usage).current, 3);
        let others: Vec<_> = (2..MAX_HUGE_GROUPS).map(|_| pools.make_group(root).unwrap()).collect();
        assert!(!others.contains(&child));
        assert_eq!(pools.make_group(root), Err(TooManyGroups), "its number is not free");
        pools.uncharge(child, Size2M, Usage, 3);
        assert_eq!(pools.group_counters(root, Size2M, Usage).current, 0);
        pools.set_group_max(child, Size2M, Usage, 1);
        let again = pools.make_group(HugeGroup::NONE).unwrap();
        assert_eq!(again, child);
        assert_eq!(
            pools.group_counters(again, Size2M, Usage),
            GroupCounters { max: u64::MAX, ..Default::default() }
        );
        // A parent outlives its children.
        pools.remove_group(root);
        assert_eq!(pools.make_group(HugeGroup::NONE), Err(TooManyGroups));
        others.into_iter().chain([again]).for_each(|group| pools.remove_group(group));
        assert!(pools.make_group(HugeGroup::NONE).is_ok());
    });
}
