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
fn pages_are_found_in_any_order() {
    let mut set = PageSet::default();
    set.insert_range(510, 515);
    [0, 2000, 2047].into_iter().for_each(|page| _ = set.insert(page));
    let model: BTreeSet<u64> = set.pages_in(0, 10_000).collect();
    assert_eq!(model.len(), 8);
    let mut lookup = set.lookup();
    for page in (0..3000).chain((0..3000).rev()).chain([510, 2000, 1024, 511, 2047, 2048]) {
        assert_eq!(lookup.contains(page), model.contains(&page), "{page}");
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

#[test]
fn sets_are_joined_cut_and_compared() {
    let mut rng = fastrand::Rng::with_seed(8);
    for _ in 0..200 {
        let mut sets = [PageSet::default(), PageSet::default()];
        for set in &mut sets {
            (0..rng.usize(0..5)).for_each(|_| {
                let first = rng.u64(0..4000);
                set.insert_range(first, first + rng.u64(1..700));
            });
        }
        let [mut one, mut other] = sets;
        let (pages, others) = (plain(&one), plain(&other));
        let mut both = one.clone();
        both.extend(&other);
        assert_eq!(plain(&both), &pages | &others);
        let (first, end) = (rng.u64(0..4000), rng.u64(0..5000));
        let within = |page: &u64| first <= *page && *page < end;
        assert_eq!(plain(&one.within(first, end)), pages.iter().copied().filter(within).collect());
        let common = one.take_common(&mut other);
        assert_eq!(plain(&common), &pages & &others);
        assert_eq!((plain(&one), plain(&other)), (&pages - &others, &others - &pages));
        assert_eq!(both.len(), one.len() + other.len() + common.len());
    }
}
