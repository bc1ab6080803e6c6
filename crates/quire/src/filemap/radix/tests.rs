use std::boxed::Box;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::vec::Vec;

use super::*;

struct Heap {
    live: Cell<usize>,
    budget: Cell<usize>,
}

impl Heap {
    fn allocate(&self) -> Option<NodeMemory> {
        self.budget.set(self.budget.get().checked_sub(1)?);
        self.live.set(self.live.get() + 1);
        NonNull::new(Box::into_raw(Box::new(MaybeUninit::uninit())))
    }

    fn free(&self, memory: NodeMemory) {
        self.live.set(self.live.get() - 1);
        // SAFETY: every node comes from `allocate`.
        drop(unsafe { Box::from_raw(memory.as_ptr()) });
    }
}

fn random(state: &mut u64, bound: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % bound
}

/// Lockstep with an ordered map, with allocations that fail at random.
/// Invariants R1, R2, R3 and R4.
#[test]
fn lockstep_with_a_map() {
    let seed = std::env::var("QUIRE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    std::println!("QUIRE_SEED={seed}");
    let mut state = seed;
    let heap = Heap { live: Cell::new(0), budget: Cell::new(0) };
    let (mut tree, mut model) = (RadixTree::new(), BTreeMap::new());
    for _ in 0..if cfg!(miri) { 800 } else { 60_000 } {
        let span = [70, 5000, 1 << 30, INDEX_END][random(&mut state, 4) as usize];
        let index = random(&mut state, 1 << 31) * 2_097_151 % span;
        match random(&mut state, 6) {
            0..3 if !model.contains_key(&index) => {
                heap.budget.set([100, random(&mut state, 10) as usize][random(&mut state, 2) as usize]);
                let before = heap.live.get();
                if tree.insert(index, index + 1, || heap.allocate(), |node| heap.free(node)) {
                    model.insert(index, index + 1);
                } else {
                    assert_eq!(heap.live.get(), before, "a failed insertion keeps no node");
                }
            }
            0..2 => {
                let word = 1 + random(&mut state, 99);
                assert_eq!(tree.set(index, word), model.contains_key(&index));
                model.entry(index).and_modify(|old| *old = word);
            }
            2 => {
                let expected = model.range(index..).next().map(|(&index, &word)| (index, word));
                assert_eq!(tree.next(index), expected);
                let range = index..index + random(&mut state, 200);
                let mut shown = Vec::new();
                tree.for_each(range.clone(), |index, word| shown.push((index, word)));
                assert_eq!(
                    shown,
                    model.range(range).map(|(&index, &word)| (index, word)).collect::<Vec<_>>()
                );
            }
            _ => {
                let index = model.range(index..).next().map_or(index, |(&index, _)| index);
                let expected = model.remove(&index).unwrap_or(0);
                assert_eq!(tree.get(index), expected);
                assert_eq!(tree.remove(index, |node| heap.free(node)), expected);
            }
        }
        assert_eq!(tree.get(index), model.get(&index).copied().unwrap_or(0));
        assert_eq!(tree.is_empty(), model.is_empty());
    }
    while let Some((index, word)) = tree.next(0) {
        assert_eq!(model.remove(&index), Some(word));
        assert_eq!(tree.remove(index, |node| heap.free(node)), word);
    }
    assert!(model.is_empty() && tree.is_empty());
    assert_eq!(heap.live.get(), 0);
}
