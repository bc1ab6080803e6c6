use super::*;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::vec::Vec;

/// A small generator for tests: numbers from a seed (splitmix64).
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Fewer under Miri, which is some hundred times as slow.
fn rounds(full: usize) -> usize {
    if cfg!(miri) { full / 100 } else { full }
}

fn group_of(mask: &FrameMask, order: u32) -> Option<usize> {
    (0..512usize).step_by(1 << order).find(|&at| (at..at + (1 << order)).all(|i| mask.contains(i)))
}

#[test]
fn groups_agree_with_counting_them() {
    let mut rng = Rng(1);
    for round in 0..rounds(2000) {
        let mut mask = if round % 2 == 0 { FrameMask::ALL } else { FrameMask::EMPTY };
        for _ in 0..rng.below(8) {
            let start = rng.below(512) as usize;
            let run = FrameMask::run(start, 1 + rng.below(512 - start as u64) as usize);
            mask = if rng.below(2) == 0 { mask.without(run) } else { mask.union(run) };
        }
        let largest =
            (0..10).rev().find(|&order| group_of(&mask, order).is_some()).map_or(0, |o| o as u8 + 1);
        assert_eq!(mask.largest_group(), largest);
        let used = Bitmap::new();
        used.store(FrameMask::ALL.without(mask));
        for order in 0..9 {
            let outside = used.find_outside(crate::addr::Order::new(order).unwrap());
            assert_eq!(outside, group_of(&mask, order.into()));
        }
        for known in largest..=9 {
            assert_eq!(used.shrunk_group(known), largest, "known to be at most {known}");
        }
        assert_eq!(mask.runs().map(|(_, count)| count).sum::<usize>(), mask.count());
    }
}

#[test]
fn a_group_grows_one_order_at_a_time() {
    let map = Bitmap::new();
    map.store(FrameMask::run(0, 4));
    map.remove_run(3, 1);
    assert_eq!(map.grown_group(3, 0), 1);
    map.remove_run(2, 1);
    assert_eq!(map.grown_group(2, 1), 2);
    map.remove_run(0, 2);
    assert_eq!(map.grown_group(0, 2), 10);
}

fn narrow() -> [AtomicU64; 64] {
    core::array::from_fn(|_| AtomicU64::new(0))
}

#[test]
fn lanes_count_every_run_exactly() {
    let words = narrow();
    let wide: [AtomicU32; 512] = core::array::from_fn(|_| AtomicU32::new(0));
    let mut model = Vec::from([0u32; 512]);
    let mut rng = Rng(7);
    for _ in 0..rounds(5000) {
        let start = rng.below(512) as usize;
        let longest = if rng.below(9) == 0 { 512 } else { 40 };
        let count = 1 + rng.below((512 - start as u64).min(longest)) as usize;
        let lanes = [Lanes::Narrow(&words), Lanes::Wide(&wide)];
        if rng.below(2) == 0 {
            let full = model[start..start + count].contains(&255);
            let fresh = model[start..start + count].contains(&0);
            assert_eq!(lanes[0].increment(start, count), if full { Err(LaneError::Full) } else { Ok(fresh) });
            if !full {
                assert_eq!(lanes[1].increment(start, count), Ok(fresh));
                model[start..start + count].iter_mut().for_each(|c| *c += 1);
            }
        } else {
            let under = model[start..start + count].contains(&0);
            for lanes in lanes {
                let mut zeroed = FrameMask::EMPTY;
                let outcome = lanes.decrement(start, count, &mut zeroed);
                assert_eq!(outcome, if under { Err(LaneError::Underflow) } else { Ok(()) });
                for (index, &count_before) in model.iter().enumerate() {
                    let hit = !under && (start..start + count).contains(&index) && count_before == 1;
                    assert_eq!(zeroed.contains(index), hit);
                }
            }
            if !under {
                model[start..start + count].iter_mut().for_each(|c| *c -= 1);
            }
        }
        let some = (0..8).fold(FrameMask::EMPTY, |mask, _| {
            mask.union(FrameMask::run(rng.below(512) as usize / 4, 1 + rng.below(3) as usize))
        });
        let under = (0..512).any(|index| some.contains(index) && model[index] == 0);
        for lanes in lanes {
            let mut zeroed = FrameMask::EMPTY;
            let outcome = lanes.decrement_each(some, &mut zeroed);
            assert_eq!(outcome, if under { Err(LaneError::Underflow) } else { Ok(()) });
            let hit = |index: usize| !under && some.contains(index) && model[index] == 1;
            assert!((0..512).all(|index| zeroed.contains(index) == hit(index)));
        }
        if !under {
            (0..512).filter(|&index| some.contains(index)).for_each(|index| model[index] -= 1);
        }
        let nonzero = lanes[0].nonzero();
        let ones = (0..8).map(|group| lanes.map(|lanes| lanes.ones(group))).collect::<Vec<_>>();
        assert_eq!(lanes.map(Lanes::any), [!nonzero.is_empty(); 2]);
        for (index, &count) in model.iter().enumerate() {
            assert_eq!(ones[index / 64].map(|ones| ones >> (index % 64) & 1 == 1), [count == 1; 2]);
            assert_eq!(lanes[0].get(index), count);
            assert_eq!(lanes[1].get(index), count);
            assert_eq!(nonzero.contains(index), count != 0);
        }
    }
}

#[test]
fn a_full_lane_changes_nothing_and_widens_exactly() {
    let words = narrow();
    let lanes = Lanes::Narrow(&words);
    for _ in 0..255 {
        lanes.increment(100, 1).unwrap();
    }
    assert_eq!(lanes.increment(96, 8), Err(LaneError::Full));
    assert_eq!(lanes.get(99), 0);
    let wide: [AtomicU32; 512] = core::array::from_fn(|_| AtomicU32::new(9));
    lanes.copy_to(&wide);
    assert_eq!(wide[100].load(Ordering::Relaxed), 255);
    Lanes::Wide(&wide).increment(96, 8).unwrap();
    assert_eq!(Lanes::Wide(&wide).get(100), 256);
    assert_eq!(Lanes::Wide(&wide).get(99), 1);
}

#[test]
fn a_bit_that_is_clear_is_not_counted_down() {
    let bits = Bitmap::new();
    let (lanes, mut zeroed) = (Lanes::Bits(&bits), FrameMask::EMPTY);
    (60..70).for_each(|index| lanes.set(index, 1));
    for frames in [FrameMask::run(60, 11), FrameMask::run(59, 2), FrameMask::run(300, 1)] {
        assert_eq!(lanes.decrement_each(frames, &mut zeroed), Err(LaneError::Underflow));
        assert!(zeroed.is_empty() && lanes.nonzero() == FrameMask::run(60, 10), "nothing changed");
    }
    lanes.decrement_each(FrameMask::run(60, 9), &mut zeroed).unwrap();
    assert!(zeroed == FrameMask::run(60, 9) && lanes.nonzero() == FrameMask::run(69, 1));
}

#[test]
fn nothing_of_an_earlier_owner_is_left_after_a_reset() {
    let row = Descriptor::default();
    row.set_flags(DescriptorFlags(!0));
    row.level.store(3, Ordering::Relaxed);
    row.population.store(5, Ordering::Relaxed);
    let words = [&row.owner, &row.index, &row.next, &row.previous, &row.word];
    words.iter().for_each(|word| word.store(7, Ordering::Relaxed));
    row.reset();
    assert!((0..32).all(|bit| !row.has(DescriptorFlags(1 << bit))));
    assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
    assert_eq!((row.level.load(Ordering::Relaxed), row.population.load(Ordering::Relaxed)), (0, 0));
}
