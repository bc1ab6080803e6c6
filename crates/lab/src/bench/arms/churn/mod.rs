//! Arms of the experiment `churn`.

pub(super) mod linux;
pub(super) mod quire;

use crate::bench::experiment::{Arm, RATE, Sample, Skip};
use crate::bench::folio::PAGE;
use crate::bench::ours::verbs::{Way, ZAPS};
use crate::host::cycles::Moment;

/// Map, touch and unmap a piece of memory repeatedly, on each thread of one address space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Churn {
    /// Bytes of a piece, whole pages.
    pub bytes: usize,
    /// Pieces of each thread.
    pub rounds: usize,
    /// Threads, each on its own CPU as far as there are enough.
    pub threads: usize,
    /// The CPUs they are pinned to.
    pub cpus: Vec<usize>,
}

/// The work of one thread, with its start and end.
struct Stint {
    start: Moment,
    end: Moment,
    pieces: u64,
}

impl Churn {
    /// The mean time of a piece on its thread.
    fn sample(&self, stints: &[Stint]) -> Result<Sample, Skip> {
        let Some(first) = stints.first() else { return Err(Skip("no thread did anything".to_owned())) };
        let start = stints.iter().fold(first.start, |moment, stint| moment.earlier(stint.start));
        let end = stints.iter().fold(first.end, |moment, stint| moment.later(stint.end));
        let pieces: u64 = stints.iter().map(|stint| stint.pieces).sum();
        let (span, busy) = (start.until(end), self.threads.min(self.cpus.len()) as f64);
        Ok(Sample::of(span * busy, pieces as f64, pieces)
            .metric(RATE, pieces as f64 * 1e9 / span.nanoseconds)
            .count("faults", pieces * (self.bytes / PAGE) as u64))
    }
}

/// Every arm. The checksum of a repetition is the number of pieces.
pub fn all() -> Vec<Box<dyn Arm<Churn>>> {
    let own = |way: &Way| -> Box<dyn Arm<Churn>> { Box::new(quire::Quire::by(*way)) };
    let mut arms: Vec<Box<dyn Arm<Churn>>> = ZAPS.iter().map(own).collect();
    arms.push(Box::<linux::Linux>::default());
    arms
}
