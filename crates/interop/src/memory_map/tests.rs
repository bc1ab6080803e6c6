//! Maps against a naive model: one state for each frame.

use std::vec::Vec;

use super::MemoryMap;
use quire::addr::PhysAddr;
use quire::limits::{FRAME_SIZE, MAX_PHYS_BYTES, MAX_RANGES};

const FRAMES: usize = 96;

/// The model's state of a frame: its node and whether it is zero; `None` if it is in no range.
type Model = [Option<(u8, bool)>; FRAMES];

fn of_map(map: &MemoryMap) -> Model {
    let mut model = [None; FRAMES];
    for range in map.ranges() {
        for frame in range.frames.start.0..range.frames.end().0 {
            assert!(model[frame as usize].is_none(), "two ranges have frame {frame}");
            model[frame as usize] = Some((range.node, range.zeroed));
        }
    }
    model
}

/// Numbers that look random, the same in every run (Marsaglia's xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

#[test]
fn maps_agree_with_a_model_of_single_frames() {
    let mut numbers = Numbers(7);
    for _ in 0..2000 {
        let (mut map, mut model) = (MemoryMap::new(), [None; FRAMES]);
        for _ in 0..12 {
            let start = numbers.below(FRAMES as u64 * FRAME_SIZE);
            let bytes = numbers.below(FRAMES as u64 * FRAME_SIZE - start);
            let inner = start.div_ceil(FRAME_SIZE) as usize..((start + bytes) / FRAME_SIZE) as usize;
            let outer = (start / FRAME_SIZE) as usize..(start + bytes).div_ceil(FRAME_SIZE) as usize;
            let outer = if bytes == 0 { 0..0 } else { outer };
            let at = PhysAddr(start);
            match numbers.below(5) {
                0 | 1 => {
                    map.add(at, bytes);
                    inner.for_each(|frame| model[frame] = model[frame].or(Some((0, false))));
                }
                2 => {
                    map.reserve(at, bytes);
                    outer.for_each(|frame| model[frame] = None);
                }
                3 => {
                    map.set_node(at, bytes, 3);
                    outer.for_each(|frame| model[frame] = model[frame].map(|(_, zeroed)| (3, zeroed)));
                }
                _ => {
                    map.mark_zeroed(at, bytes);
                    inner.for_each(|frame| model[frame] = model[frame].map(|(node, _)| (node, true)));
                }
            }
            assert_eq!(of_map(&map), model);
            let ranges: Vec<_> = map.ranges().iter().collect();
            assert!(ranges.windows(2).all(|pair| pair[0].frames.end() <= pair[1].frames.start));
            assert!(map.ranges().iter().all(|range| range.frames.count > 0));
            assert_eq!(map.frames(), model.iter().flatten().count() as u64);
            assert_eq!(map.dropped_frames(), 0);
        }
    }
}

#[test]
fn of_too_many_ranges_the_smallest_are_dropped() {
    let mut map = MemoryMap::new();
    for number in 0..MAX_RANGES as u64 + 2 {
        // Sizes of 2, 3, 1, 2, 3, 1, ... frames with holes between them.
        map.add(PhysAddr(number * 8 * FRAME_SIZE), (1 + (number + 1) % 3) * FRAME_SIZE);
    }
    assert_eq!(map.ranges().len(), MAX_RANGES);
    assert_eq!(map.dropped_frames(), 2, "two ranges of one frame");
    map.reserve(PhysAddr(8 * FRAME_SIZE + FRAME_SIZE), 1);
    assert_eq!(map.ranges().len(), MAX_RANGES, "a range fell apart, and a small one is gone");
    assert_eq!(map.dropped_frames(), 3);
}

#[test]
fn whole_blocks_lie_in_the_ranges() {
    const MIB: u64 = 1 << 20;
    let mut map = MemoryMap::new();
    for (start, bytes) in [(MIB, 2 * MIB), (4 * MIB, 4 * MIB), (9 * MIB, 4 * MIB)] {
        map.add(PhysAddr(start), bytes);
    }
    let blocks: Vec<_> =
        map.whole_blocks().map(|blocks| (blocks.start.0 / 512, blocks.count / 512)).collect();
    assert_eq!(blocks, [(2, 2), (5, 1)]);
}

#[test]
fn addresses_at_the_end_are_cut() {
    let mut map = MemoryMap::new();
    map.add(PhysAddr(MAX_PHYS_BYTES - 2 * FRAME_SIZE), u64::MAX);
    map.add(PhysAddr(u64::MAX - 10), 100);
    map.add(PhysAddr(5), 4000);
    assert_eq!(map.frames(), 2);
    map.reserve(PhysAddr(MAX_PHYS_BYTES - 1), u64::MAX);
    assert_eq!(map.frames(), 1);
    map.reserve(PhysAddr(0), u64::MAX);
    assert!(map.ranges().is_empty());
}

/// The rest of a frame at an end may hold anything.
#[test]
fn a_frame_that_is_zero_in_part_is_not_known_to_be_zero() {
    let mut map = MemoryMap::new();
    map.add(PhysAddr(0), 4 * FRAME_SIZE);
    map.mark_zeroed(PhysAddr(1), FRAME_SIZE - 1);
    map.mark_zeroed(PhysAddr(FRAME_SIZE + 8), 2 * FRAME_SIZE);
    let ranges: Vec<_> = map.ranges().iter().map(|range| (range.frames.start.0, range.zeroed)).collect();
    assert_eq!(ranges, [(0, false), (2, true), (3, false)]);
}
