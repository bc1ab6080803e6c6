use std::sync::Arc;

use quire::addr::{Frame, FrameRange};

use super::{Leaf, Radix};
use crate::mmu::shift;
use crate::tlb::Reach;

const PAGE: u64 = 4096;
const FRAMES: u64 = 1 << 20;

/// Steps of a fixed generator: nothing else is random here.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = crate::plan::mix(self.0);
        self.0 % limit
    }
}

/// Draws a level and a leaf of it that lies in the tables and in memory.
fn draw(rng: &mut Draw, bytes: u64) -> Leaf {
    let level = [1, 1, 1, 2, 2, 3][rng.below(6) as usize];
    let size = 1u64 << shift(level);
    let at = rng.below(bytes / size) * size;
    // Few offsets, so that leaves of several sizes name the same frames.
    let frame = (at / PAGE + rng.below(2) * (1 << 18)) % FRAMES;
    Leaf { at, level, frame, write: rng.below(2) == 1 }
}

/// In lockstep with a list of the leaves, and with a count of those that lead to a frame (invariant 12).
#[test]
fn lockstep_with_a_list() {
    let bytes = 3 << 30;
    let reach = Arc::new(Reach::new(FRAMES));
    let radix = Radix::new(bytes, Arc::clone(&reach));
    let mut model: Vec<Leaf> = Vec::new();
    let mut rng = Draw(5);
    for step in 0..if cfg!(miri) { 60 } else { 3000 } {
        let leaf = draw(&mut rng, bytes);
        let range = match rng.below(4) {
            0 => leaf.at..leaf.at + leaf.bytes(),
            1 => leaf.at..(leaf.at + PAGE * (1 + rng.below(2000))).min(bytes),
            _ => 0..0,
        };
        let touched = |old: &Leaf, start: u64, end: u64| old.at < end && start < old.at + old.bytes();
        let mut dropped = Vec::new();
        let (start, end) =
            if range.is_empty() { (leaf.at, leaf.at + leaf.bytes()) } else { (range.start, range.end) };
        let mut expected: Vec<Leaf> = model.iter().filter(|old| touched(old, start, end)).copied().collect();
        model.retain(|old| !touched(old, start, end));
        if range.is_empty() {
            radix.put(leaf, &mut |old| dropped.push(old));
            model.push(leaf);
        } else {
            radix.drop_range(range, &mut |old| dropped.push(old));
        }
        expected.sort_by_key(|leaf| leaf.at);
        dropped.sort_by_key(|leaf| leaf.at);
        assert_eq!(dropped, expected, "step {step}");
        for _ in 0..8 {
            let at = rng.below(bytes);
            assert_eq!(radix.walk(at), model.iter().find(|leaf| touched(leaf, at, at + 1)).copied());
            let frame = rng.below(FRAMES);
            let reached = model.iter().any(|leaf| super::maps_one_of(leaf, frame, 1));
            assert_eq!(reach.may_reach(FrameRange::new(Frame(frame), 1)), reached, "frame {frame:#x}");
        }
        let mut all = Vec::new();
        radix.each(0..bytes, &mut |leaf| all.push(leaf));
        model.sort_by_key(|leaf| leaf.at);
        assert_eq!(all, model);
    }
    drop(radix);
    assert!(!reach.may_reach(FrameRange::new(Frame(0), FRAMES)), "all is given back");
}
