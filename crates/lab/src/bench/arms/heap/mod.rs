//! Arms of the experiments `page-test` and `brk-test`.

mod linux;
mod quire;

use crate::bench::experiment::{Arm, Better, Metric, RATE, Sample};

/// Nanoseconds of one loop over a whole heap.
const LOOP: Metric = Metric { name: "loop", unit: "ns", better: Better::Lower };

/// A heap that grows by steps and shrinks to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heap {
    /// Bytes by which it grows; a multiple of `step`.
    pub bytes: usize,
    /// Bytes by which one call moves its end, a multiple of a page.
    pub step: usize,
    /// If true, it grows, every page is written to, and one call shrinks it; else it grows and shrinks by
    /// steps, untouched.
    pub touch: bool,
    /// Number of loops.
    pub loops: usize,
}

impl Heap {
    /// The operations of all loops: pages written to, or calls that move the end.
    pub fn operations(&self) -> usize {
        let each =
            if self.touch { self.bytes / crate::bench::folio::PAGE } else { 2 * self.bytes / self.step };
        each * self.loops
    }

    /// A repetition that took this long for all loops.
    fn sample(&self, nanoseconds: f64, done: u64) -> Sample {
        let operations = self.operations() as f64;
        Sample::new(nanoseconds / operations, done)
            .metric(RATE, operations * 1e9 / nanoseconds)
            .metric(LOOP, nanoseconds / self.loops as f64)
            .count("operations", done)
    }
}

/// Every arm. The checksum of a repetition is how many operations were done.
pub fn all() -> Vec<Box<dyn Arm<Heap>>> {
    vec![Box::<quire::Quire>::default(), Box::new(linux::Linux)]
}
