//! Each thread clears a GiB, extent by extent.

use std::rc::Rc;
use std::time::Instant;

use quire::addr::FrameRange;

use super::grounds::{Grounds, Shared, mark, zeroes};
use super::way::{RATE, Way};
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};
use crate::host::threads::Meeting;

/// Clear memory in extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Bytes of an extent, a multiple of 4 KiB.
    pub extent: u64,
    /// Bytes that each thread clears, a multiple of the extent.
    pub bytes: u64,
    /// Threads that clear at the same time, each its own memory.
    pub threads: usize,
}

pub(super) struct Filling {
    way: Way,
    shared: Rc<Shared>,
}

impl Filling {
    pub(super) fn arm(way: Way, shared: &Rc<Shared>) -> Box<dyn Arm<Fill>> {
        Box::new(Self { way, shared: shared.clone() })
    }
}

impl Arm<Fill> for Filling {
    fn name(&self) -> &'static str {
        self.way.name()
    }

    fn about(&self) -> &'static str {
        self.way.about()
    }

    fn setup(&mut self, case: &Fill) -> Result<Box<dyn Prepared + '_>, Skip> {
        let grounds = self.shared.grounds(case.bytes)?;
        Ok(Box::new(Ready { way: self.way, case: *case, grounds }))
    }
}

struct Ready {
    way: Way,
    case: Fill,
    grounds: Rc<Grounds>,
}

impl Prepared for Ready {
    fn run(&mut self) -> Result<Sample, Skip> {
        let Fill { extent, bytes, threads } = self.case;
        let (meeting, grounds) = (Meeting::of(threads), &*self.grounds);
        let spans = grounds.machine().spawn_pinned_cpus(threads, grounds.processors(), |cpu| {
            let all = FrameRange::new(grounds.of(cpu).start, bytes / 4096);
            mark(grounds.machine(), all);
            meeting.wait();
            let begun = Instant::now();
            for at in (0..all.count).step_by((extent / 4096) as usize) {
                grounds.clear(self.way, FrameRange::new(all.start.add(at), extent / 4096), None);
            }
            let done = Instant::now();
            (begun, done, zeroes(grounds.machine(), all))
        });
        let begun = spans.iter().map(|span| span.0).min();
        let done = spans.iter().map(|span| span.1).max();
        let (Some(begun), Some(done)) = (begun, done) else { return Err(Skip("no thread".to_owned())) };
        let nanoseconds = (done - begun).as_nanos() as f64;
        let cleared = bytes * threads as u64;
        Ok(Sample::new(nanoseconds, spans.iter().map(|span| span.2).sum())
            .metric(RATE, rate(cleared, nanoseconds))
            .count("bytes", cleared)
            .count("extents", cleared / extent))
    }
}

/// GiB/s.
pub(super) fn rate(bytes: u64, nanoseconds: f64) -> f64 {
    bytes as f64 / nanoseconds * 1e9 / f64::from(1 << 30)
}
