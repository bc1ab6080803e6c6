use std::boxed::Box;
use std::collections::BTreeSet;
use std::vec::Vec;

use super::*;
use crate::vm::tree::tests::Random;

/// Address space, first page, address, end.
type Model = BTreeSet<(u64, u64, u64, u64)>;

fn pointer(view: &mut Box<View>) -> ViewPtr {
    Ptr(NonNull::from(&mut **view))
}

/// Every view of `pages`, found as the reverse map does it.
fn found(views: &FileViews, pages: &Range<u64>) -> Vec<(u64, u64, u64)> {
    let (mut all, mut after) = (Vec::new(), 0);
    while let Some(mapper) = views.next_mapper(after, pages) {
        // SAFETY: V1: the mappers of a test live as long as it.
        let mapper = unsafe { mapper.as_ref() };
        assert!(mapper.number() > after && mapper.is_pinned());
        mapper.unpin();
        after = mapper.number();
        let mut last = None;
        let before = all.len();
        while let Some((first, addr)) = views.next_in(after, last, pages) {
            assert!(last < Some((first, addr)));
            last = Some((first, addr));
            all.push((after, first, addr.0));
        }
        assert!(all.len() > before, "an address space that maps none of the pages");
    }
    all
}

fn check(views: &FileViews, at: Option<ViewPtr>) -> (u8, u64) {
    let Some(at) = at else { return (0, 0) };
    let (left, right) = (check(views, views.avl.left(at)), check(views, views.avl.right(at)));
    assert!(left.0.abs_diff(right.0) <= 1 && views.avl.height(Some(at)) == 1 + left.0.max(right.0));
    let last = views.avl.node(at).end().max(left.1).max(right.1);
    assert_eq!(views.avl.node(at).last, last);
    (1 + left.0.max(right.0), last)
}

/// Invariants A1, A2, A3 and V1.
#[test]
fn lockstep_with_a_set() {
    let mut random = Random::seeded(5);
    for span in [6, 60, 4000] {
        let mappers: Vec<Mapper> = (1..6).map(Mapper::new).collect();
        let mut nodes: Vec<Box<View>> =
            (0..if cfg!(miri) { 20 } else { 200 }).map(|_| Box::new(View::new())).collect();
        let nodes: Vec<ViewPtr> = nodes.iter_mut().map(pointer).collect();
        let mut shown = std::vec![None; nodes.len()];
        let (mut views, mut model) = (FileViews::new(), Model::new());
        for _ in 0..if cfg!(miri) { 200 } else { 6000 } {
            let at = random.below(nodes.len() as u64) as usize;
            if let Some(old) = shown[at].take() {
                model.remove(&old);
            }
            if random.below(3) == 0 {
                views.hide(nodes[at]);
            } else {
                let mapper = &mappers[random.below(5) as usize];
                let first = random.below(span);
                let most = if random.below(8) == 0 { span } else { 4 };
                let end = first + 1 + random.below(most);
                let addr = (at as u64 + 1) << 30 | first << 12;
                let (mapper, number) = (NonNull::from(mapper), mapper.number());
                let before = views.avl.node(nodes[at]).shown.filter(|_| random.below(2) == 0);
                match before.map(|before| (first.min(before.pages.0), end.max(before.pages.1))) {
                    None => {
                        views.show(nodes[at], mapper, number, first..end, VirtAddr(addr));
                        shown[at] = Some((number, first, addr, end));
                    }
                    Some(both) => {
                        let more = views.show_more(nodes[at], mapper, number, first..end, VirtAddr(addr));
                        assert_eq!(more, both != (first, end));
                        shown[at] = Some((number, both.0, addr, both.1));
                    }
                }
                model.extend(shown[at]);
            }
            let start = random.below(span + 4);
            let pages = start..start + 1 + random.below(6);
            let overlaps =
                |&&(_, first, _, end): &&(u64, u64, u64, u64)| first < pages.end && end > pages.start;
            let expected: Vec<_> = model
                .iter()
                .filter(overlaps)
                .map(|&(number, first, addr, _)| (number, first, addr))
                .collect();
            assert_eq!(found(&views, &pages), expected);
        }
        check(&views, views.avl.root);
        nodes.iter().for_each(|&node| views.hide(node));
        assert!(views.is_empty());
    }
}
