use super::*;
use std::collections::BTreeSet;
use std::mem;

/// The naive implementation.
fn plain(set: &PageSet) -> BTreeSet<u64> {
    set.pages_in(0, 10_000).collect()
}

#[test]
fn ranges_come_and_go_as_in_a_plain_set() {
    let mut rng = fastrand::Rng::with_seed(7);
    let (mut set, mut model) = (PageSet::default(), vec![false; 8192]);
    for _ in 0..2000 {
        let first = rng.u64(0..4000);
        let end = first + if rng.bool() { rng.u64(0..3) } else { rng.u64(0..1300) };
        match rng.u8(0..4) {
            0 => assert_eq!(set.insert(first), !mem::replace(&mut model[first as usize], true)),
            1 => {
                set.insert_range(first, end);
                model[first as usize..end as usize].fill(true);
            }
            2 => {
                set.remove_range(first, end);
                model[first as usize..end as usize].fill(false);
            }
            _ => {
                let to = rng.u64(0..4000);
                set.move_range(first, end, to);
                let from = first as usize..end as usize;
                let moved: Vec<usize> = from.clone().filter(|&page| model[page]).collect();
                model[from].fill(false);
                moved.iter().for_each(|page| model[page - first as usize + to as usize] = true);
            }
        }
        let pages: Vec<u64> = (0..8192).filter(|&page| model[page as usize]).collect();
        assert!(set.pages_in(0, 10_000).eq(pages.iter().copied()), "{:?}, not {pages:?}", plain(&set));
        assert_eq!(set.len(), pages.len() as u64);
        for (order, count) in set.groups().iter().enumerate() {
            let groups = pages.chunk_by(|one, other| one >> order == other >> order);
            assert_eq!(*count, groups.count() as u64, "groups of order {order}");
        }
        assert!(set.contains(first) == model[first as usize]);
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
