//! Aged memory, and then many requests for frames that do not move.

use hosted::raw::IsolatedMemory;
use quire::page_alloc::Gfp;
use quire::platform::Platform;

use super::load::{Done, Requests};

/// How often movable folios fill the memory, and a random half of them is freed.
const AGES: usize = 2;
/// The share of memory that does not move at the end, in percent: half of it unmovable, half reclaimable.
const PINNED: u64 = 2;
/// Movable folios that come and go between the frames that stay: one for so many.
const BETWEEN: u64 = 4;

impl<P: Platform + IsolatedMemory> Requests<'_, '_, P> {
    /// Fills the memory until a request is refused, and frees a random half, so that few blocks are whole.
    /// None of these requests is counted.
    pub(super) fn age(&mut self) {
        for _ in 0..AGES {
            while self.request_movable() {}
            let half = self.movable.len() / 2;
            self.rng.shuffle(&mut self.movable);
            for held in self.movable.split_off(half) {
                self.give(held);
            }
        }
        let whole_before_storm = self.pages.zone_info().map(|zone| zone.whole_blocks).sum();
        self.done = Done { whole_before_storm, ..Done::default() };
    }

    /// Allocates unmovable and reclaimable frames for good while movable folios come and go.
    pub(super) fn storm(&mut self) {
        for number in 0..self.frames * PINNED / 100 {
            self.done.requests += 1;
            let gfp = if self.rng.bool() { Gfp::KERNEL } else { Gfp::RECLAIMABLE };
            let taken = self.take(gfp, 0);
            self.forever.extend(taken);
            if number % BETWEEN == 0 && self.request_movable() {
                self.done.requests += 1;
                self.free_movable();
            }
        }
    }
}
