//! Limits for groups of processes.

use quire::hugetlb::{Charge, GroupCounters, HugeGroup, HugeSize, LimitReached};

use Charge::{Reservation, Usage};
use HugeSize::{Size1G, Size2M};

#[test]
fn a_charge_counts_in_every_group_or_in_none() {
    let root = HugeGroup::new(None);
    let (left, right) = (HugeGroup::new(Some(&root)), HugeGroup::new(Some(&root)));
    root.set_max(Size2M, Usage, 10);
    left.set_max(Size2M, Usage, 8);
    left.charge(Size2M, Usage, 8).unwrap();
    assert_eq!(left.charge(Size2M, Usage, 1), Err(LimitReached));
    right.charge(Size2M, Usage, 2).unwrap();
    assert_eq!(right.charge(Size2M, Usage, 1), Err(LimitReached), "the root's limit");
    let shown = |group: &HugeGroup<'_>| group.counters(Size2M, Usage);
    assert_eq!(shown(&left), GroupCounters { current: 8, max: 8, failures: 1 });
    assert_eq!(shown(&right), GroupCounters { current: 2, max: u64::MAX, failures: 0 });
    assert_eq!(shown(&root), GroupCounters { current: 10, max: 10, failures: 1 });
    left.uncharge(Size2M, Usage, 5);
    right.charge(Size2M, Usage, 5).unwrap();
    assert_eq!((shown(&left).current, shown(&right).current, shown(&root).current), (3, 7, 10));
    // Sizes and kinds are apart.
    right.charge(Size1G, Usage, 100).unwrap();
    right.charge(Size2M, Reservation, u64::MAX).unwrap();
    assert_eq!(right.charge(Size2M, Reservation, 1), Err(LimitReached), "numbers do not wrap");
    // A limit below what is charged refuses what is new.
    right.set_max(Size2M, Usage, 1);
    assert_eq!(right.charge(Size2M, Usage, 1), Err(LimitReached));
    assert_eq!(shown(&right).current, 7);
}

#[test]
fn charges_of_several_threads_never_pass_the_limit() {
    let root = HugeGroup::new(None);
    root.set_max(Size2M, Usage, 100);
    let below = [HugeGroup::new(Some(&root)), HugeGroup::new(Some(&root))];
    std::thread::scope(|scope| {
        for group in &below {
            scope.spawn(|| {
                let mut charged = 0;
                for round in 0..20_000_u64 {
                    if round % 3 == 2 && charged > 0 {
                        group.uncharge(Size2M, Usage, charged);
                        charged = 0;
                    } else if group.charge(Size2M, Usage, 30).is_ok() {
                        charged += 30;
                    }
                    assert!(root.counters(Size2M, Usage).current <= 100);
                }
                group.uncharge(Size2M, Usage, charged);
            });
        }
    });
    assert_eq!(root.counters(Size2M, Usage).current, 0);
}
