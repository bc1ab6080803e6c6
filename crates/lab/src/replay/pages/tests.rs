use super::*;
use std::collections::BTreeSet;

/// The naive implementation.
fn plain(set: &PageSet) -> BTreeSet<u64> {
    set.pages_in(0, 10_000).collect()
}

#[test]
fn ranges_come_and_go_as_in_a_plain_set() {
    let mut rng = fastrand::Rng::with_seed(7);
    let (mut set, mut model) = (PageSet::default(), BTreeSet::new());
    for _ in 0..2000 {
        let first = rng.u64(0..4000);
        let end = first + rng.u64(0..1300);
        match rng.u8(0..4) {
            0 => assert_eq!(set.insert(first), model.insert(first)),
            1 => {
                set.insert_range(first, end);
                model.extend(first..end);
            }
            2 => {
                set.remove_range(first, end);
                model.retain(|page| !(first..end).contains(page));
            }
            _ => {
                let to = rng.u64(0..4000);
                set.move_range(first, end, to);
                let (moved, rest): (BTreeSet<u64>, _) =
                    model.into_iter().partition(|page| (first..end).contains(page));
                model = rest;
                model.extend(moved.into_iter().map(|page| page - first + to));
            }
        }
        assert_eq!(plain(&set), model);
        assert_eq!(set.len(), model.len() as u64);
        for (order, count) in set.groups().iter().enumerate() {
            let groups: BTreeSet<u64> = model.iter().map(|page| page >> order).collect();
            assert_eq!(*count, groups.len() as u64, "groups of order {order}");
        }
        assert!(set.contains(first) == model.contains(&first));
    }
}

#[test]
fn runs_and_chunks_are_counted() {
    let mut set = PageSet::default();
    set.insert_range(510, 515);
    set.insert(2000);
    assert_eq!(set.runs(), [(510, 5), (2000, 1)]);
    assert_eq!(set.chunks(), 3);
    set.remove_range(0, 600);
    assert_eq!((set.runs(), set.chunks()), (vec![(2000, 1)], 1));
}
