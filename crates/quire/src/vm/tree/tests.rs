use std::boxed::Box;
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::vec::Vec;

use super::*;
use crate::arch::Protection;
use crate::limits::STACK_GUARD_BYTES;
use crate::vm::mapping::vma::VmaFlags;

/// A random sequence from a seed (Steele, Lea and Flood's SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// The seed: `QUIRE_SEED` if it is set. Printed, so that a failure can be repeated.
    pub(crate) fn seeded(default: u64) -> Self {
        let seed = std::env::var("QUIRE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(default);
        std::println!("QUIRE_SEED={seed}");
        Self(seed)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mix = self.0;
        mix = (mix ^ mix >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mix = (mix ^ mix >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mix ^ mix >> 31) % bound
    }
}

pub(crate) fn boxed(vma: Vma) -> VmaBox {
    let memory = Box::into_raw(Box::new(MaybeUninit::uninit()));
    // SAFETY: a fresh allocation, given back by `unboxed` only.
    unsafe { VmaBox::new(NonNull::new(memory).unwrap(), vma) }
}

pub(crate) fn unboxed(node: VmaBox) -> Vma {
    let (memory, vma) = node.into_raw();
    // SAFETY: the memory came from `Box::into_raw` in `boxed`.
    drop(unsafe { Box::from_raw(memory.as_ptr()) });
    vma
}

pub(crate) fn pages(start: u64, end: u64) -> VirtRange {
    VirtRange::new(VirtAddr(start << 12), VirtAddr(end << 12))
}

fn plain(start: u64, end: u64, grows: bool) -> Vma {
    let mut attributes = VmaAttributes::anonymous(Protection::READ);
    attributes.flags = VmaFlags::NONE.with_if(VmaFlags::GROWS_DOWN, grows);
    Vma::new(pages(start, end), attributes)
}

/// Start page to end page and whether it grows down.
type Model = BTreeMap<u64, (u64, bool)>;

fn compare(tree: &VmaTree, model: &Model) {
    tree.validate().unwrap();
    assert_eq!(tree.len(), model.len());
    for (vma, (&start, &(end, grows))) in tree.iter().zip(model) {
        assert_eq!(*vma, plain(start, end, grows));
    }
}

fn empty(tree: &mut VmaTree) {
    while let Some(node) = tree.pop_first() {
        unboxed(node);
        tree.validate().unwrap();
    }
    assert_eq!(tree.len(), 0);
}

fn overlaps(model: &Model, start: u64, end: u64) -> bool {
    model.iter().any(|(&from, &(to, _))| from < end && start < to)
}

/// The search by trying: every gap that surely has an aligned place, from the top.
fn naive_highest(model: &Model, low: u64, high: u64, len: u64, align: u64) -> Option<u64> {
    let mut gaps = Vec::new();
    let mut floor = 0;
    for (&start, &(end, grows)) in model {
        let guard = if grows { STACK_GUARD_BYTES >> 12 } else { 0 };
        gaps.push((floor, start.saturating_sub(guard)));
        floor = end;
    }
    gaps.push((floor, u64::MAX >> 12));
    gaps.iter().rev().find_map(|&(from, to)| {
        let (from, to) = (from.max(low), to.min(high));
        (to >= from && to - from >= len + align - 1).then(|| (to - len) / align * align)
    })
}

fn step(random: &mut Random, tree: &mut VmaTree, model: &mut Model, span: u64) {
    let start = random.below(span);
    let end = start + 1 + random.below(12);
    match random.below(10) {
        0..5 => {
            let grows = random.below(8) == 0;
            let fits = !overlaps(model, start, end);
            match tree.insert(boxed(plain(start, end, grows))) {
                Ok(()) => {
                    assert!(fits);
                    model.insert(start, (end, grows));
                }
                Err(node) => {
                    assert!(!fits);
                    unboxed(node);
                }
            }
        }
        5..7 => {
            let start = model.range(start..).next().map_or(start, |(&start, _)| start);
            let removed = tree.remove(VirtAddr(start << 12)).map(unboxed);
            let expected = model.remove(&start).map(|(end, grows)| plain(start, end, grows));
            assert_eq!(removed, expected);
        }
        7..9 => {
            let Some((&old, &(old_end, grows))) = model.range(start..).next() else { return };
            let (from, to) = (old.saturating_sub(random.below(4)), old_end + random.below(5));
            model.remove(&old);
            let fits = from < to && !overlaps(model, from, to);
            assert_eq!(tree.resize(VirtAddr(old << 12), pages(from, to)), fits);
            model.insert(if fits { from } else { old }, (if fits { to } else { old_end }, grows));
        }
        _ => {
            let Some((&at, found)) = model.range_mut(start..).next() else { return };
            found.1 = !found.1;
            let flags = VmaFlags::NONE.with_if(VmaFlags::GROWS_DOWN, found.1);
            assert!(tree.modify(VirtAddr(at << 12), |vma| vma.flags = flags).is_some());
        }
    }
}

fn probe(random: &mut Random, tree: &VmaTree, model: &Model, span: u64) {
    let page = random.below(span + 16);
    let addr = VirtAddr((page << 12) + random.below(4096));
    let found = model.range(..=page).next_back().filter(|(_, (end, _))| page < *end);
    assert_eq!(tree.find(addr).map(|vma| vma.range.start.page()), found.map(|(&start, _)| start));
    let from = model.iter().find(|(_, (end, _))| page < *end).map(|(&start, _)| start);
    assert_eq!(tree.find_from(addr).map(|vma| vma.range.start.page()), from);
    let before = model.range(..page).next_back().map(|(&start, _)| start);
    assert_eq!(tree.find_before(VirtAddr(page << 12)).map(|vma| vma.range.start.page()), before);
    let range = pages(page, page + random.below(30));
    let inside: Vec<u64> = tree.overlapping(range).map(|vma| vma.range.start.page()).collect();
    let stop = range.end.page();
    let expected = model.iter().filter(|&(&start, &(end, _))| page < stop && start < stop && page < end);
    assert_eq!(inside, expected.map(|(&start, _)| start).collect::<Vec<_>>());
    let (low, len) = (random.below(span), 1 + random.below(40));
    let (high, align) = (low + random.below(span), 1 << random.below(6));
    let gap = tree.highest_gap(pages(low, high), len << 12, align << 12);
    assert_eq!(gap.map(VirtAddr::page), naive_highest(model, low, high, len, align));
}

/// Invariants T1, T2, T3, T4, T5, T6 and T7.
#[test]
fn lockstep_with_a_map() {
    let (runs, steps) = if cfg!(miri) { (2, 150) } else { (12, 3000) };
    let mut random = Random::seeded(1);
    for _ in 0..runs {
        let span = [60, 700, 20_000][random.below(3) as usize];
        let (mut tree, mut model) = (VmaTree::new(), Model::new());
        for at in 0..steps {
            step(&mut random, &mut tree, &mut model, span);
            probe(&mut random, &tree, &model, span);
            if at % 16 == 0 {
                compare(&tree, &model);
            }
        }
        compare(&tree, &model);
        empty(&mut tree);
    }
}

/// Every order in which seven mappings can come and every one that can go first.
#[test]
fn every_order_of_a_few() {
    fn permute(rest: &mut Vec<u64>, chosen: &mut Vec<u64>, visit: &mut impl FnMut(&[u64])) {
        if rest.is_empty() {
            visit(chosen);
        }
        for at in 0..rest.len() {
            let next = rest.remove(at);
            chosen.push(next);
            permute(rest, chosen, visit);
            chosen.pop();
            rest.insert(at, next);
        }
    }
    let count = if cfg!(miri) { 4 } else { 7 };
    permute(&mut (0..count).collect(), &mut Vec::new(), &mut |order| {
        let mut tree = VmaTree::new();
        for &at in order {
            tree.insert(boxed(plain(3 * at, 3 * at + 2, false))).unwrap();
            tree.validate().unwrap();
        }
        for &at in order {
            unboxed(tree.remove(VirtAddr((3 * at) << 12)).unwrap());
            tree.validate().unwrap();
        }
        assert!(tree.is_empty());
    });
}

#[test]
fn height_is_bounded() {
    let mut tree = VmaTree::new();
    let count = if cfg!(miri) { 100 } else { 20_000 };
    for at in 0..count {
        tree.insert(boxed(plain(at, at + 1, false))).unwrap();
    }
    tree.validate().unwrap();
    let bound = 1.45 * ((count + 2) as f64).log2();
    assert!(f64::from(tree.avl.height(tree.avl.root)) <= bound);
    empty(&mut tree);
}

#[test]
fn a_list_keeps_order() {
    let mut list = VmaList::new();
    for at in 0..5 {
        list.push(boxed(plain(at, at + 1, false)));
    }
    assert_eq!(list.len(), 5);
    for at in 0..5 {
        assert_eq!(unboxed(list.pop().unwrap()), plain(at, at + 1, false));
    }
    assert!(list.pop().is_none() && list.is_empty());
}
