//! Aged memory, and then many requests for unmovable frames.

use hosted::raw::IsolatedMemory;
use quire::page_alloc::Gfp;
use quire::platform::Platform;

use super::load::{FULL, Requests};

/// How often movable folios fill the memory, and a random half of them is freed.
const AGES: usize = 2;
/// The share of memory that is unmovable at the end, in percent.
const UNMOVABLE: u64 = 2;
/// Movable folios that come and go between two unmovable frames: one of each for so many.
const BETWEEN: u64 = 4;

impl<P: Platform + IsolatedMemory> Requests<'_, '_, P> {
    /// Fills and empties the memory, so that few blocks are whole, and allocates unmovable frames for good while movable
    /// folios come and go.
    pub(super) fn storm(&mut self) {
        for _ in 0..AGES {
            while self.used * 100 < self.frames * FULL {
                self.done.requests += 1;
                if !self.request_movable() {
                    break;
                }
            }
            let half = self.movable.len() / 2;
            self.rng.shuffle(&mut self.movable);
            for held in self.movable.split_off(half) {
                self.give(held);
            }
        }
        for number in 0..self.frames * UNMOVABLE / 100 {
            self.done.requests += 1;
            let taken = self.take(Gfp::KERNEL, 0);
            self.forever.extend(taken);
            if number % BETWEEN == 0 && self.request_movable() {
                self.done.requests += 1;
                self.free_movable();
            }
        }
    }
}
