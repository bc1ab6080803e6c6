//! Clears memory and then uses nothing of it, the 64 KiB that an access waits for, or all of it in order or not.

use std::rc::Rc;
use std::time::Instant;

use quire::addr::FrameRange;
use quire::cpu::CpuId;

use super::grounds::{Grounds, Shared};
use super::way::Way;
use crate::bench::experiment::{Arm, Better, Metric, Prepared, Sample, Skip};

/// Clear an extent and use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// Bytes of an extent, a multiple of 64 KiB.
    pub extent: u64,
    /// Bytes that are cleared in a repetition, a multiple of the extent.
    pub bytes: u64,
    /// Bytes over which successive repetitions spread their extents: so many that nothing is cached.
    pub among: u64,
    /// The part that is used.
    pub used: Use,
}

/// Which part of an extent is used after it was cleared; every line once, in order if not said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Nothing.
    Nothing,
    /// The 64 KiB in its middle, where the fault was.
    Near,
    /// The whole extent.
    All,
    /// The whole extent, in an order that no prefetcher knows.
    Scattered,
}

const NEAR_FRAMES: u64 = 16;

/// Nanoseconds of the clearing alone.
const CLEARING: Metric = Metric { name: "clear", unit: "ns", better: Better::Lower };

pub(super) struct Using {
    way: Way,
    shared: Rc<Shared>,
}

impl Using {
    pub(super) fn arm(way: Way, shared: &Rc<Shared>) -> Box<dyn Arm<Used>> {
        Box::new(Self { way, shared: shared.clone() })
    }
}

impl Arm<Used> for Using {
    fn name(&self) -> &'static str {
        self.way.name()
    }

    fn about(&self) -> &'static str {
        self.way.about()
    }

    fn setup(&mut self, case: &Used) -> Result<Box<dyn Prepared + '_>, Skip> {
        let grounds = self.shared.grounds(case.among)?;
        Ok(Box::new(Ready { way: self.way, case: *case, grounds, at: 0 }))
    }
}

struct Ready {
    way: Way,
    case: Used,
    grounds: Rc<Grounds>,
    /// Offset at which the next repetition starts.
    at: u64,
}

impl Prepared for Ready {
    fn run(&mut self) -> Result<Sample, Skip> {
        let Used { extent, bytes, among, used } = self.case;
        let grounds = self.grounds.clone();
        let frames = extent / 4096;
        let mut all = FrameRange::new(grounds.of(CpuId(0)).start.add(self.at / 4096), bytes / 4096);
        self.at = (self.at + bytes) % (among / bytes * bytes);
        grounds.machine().run_on(CpuId(0), || {
            let (mut lines, mut clearing) = (0, 0.0);
            let count = all.count / frames;
            let begun = Instant::now();
            for _ in 0..count {
                let one = FrameRange::new(all.start, frames);
                let near =
                    FrameRange::new(one.start.add(frames / 2 / NEAR_FRAMES * NEAR_FRAMES), NEAR_FRAMES);
                let start = Instant::now();
                grounds.clear(self.way, one, Some(near.start));
                clearing += start.elapsed().as_nanos() as f64;
                lines += match used {
                    Use::Nothing => 0,
                    Use::Near => grounds.read(near),
                    Use::All => grounds.read(one),
                    Use::Scattered => grounds.read_scattered(one),
                };
                all.start = all.start.add(frames);
            }
            let nanoseconds = begun.elapsed().as_nanos() as f64;
            let each = count as f64;
            Ok(Sample::new(nanoseconds / each, lines)
                .metric(CLEARING, clearing / each)
                .count("extents", count)
                .count("lines_used", lines))
        })
    }
}
