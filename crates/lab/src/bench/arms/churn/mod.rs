//! Arms of the experiment `churn`.

mod linux;
pub(super) mod pieces;
mod quire;

use crate::bench::experiment::{Arm, RATE, Sample, Skip};
use crate::bench::folio::PAGE;
use crate::bench::ours::verbs::{Way, ZAPS};
use crate::host::cycles::Moment;

/// What each thread does with its pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Maps, touches and unmaps a new one.
    Map,
    /// Touches a piece of memory that is mapped already, each thread in a range of its own, and drops its pages
    /// by the verb that is `Drop`'s turn.
    Apart,
    /// The same, all threads in one range: each page belongs to all of them.
    Overlapping,
}

/// How the pages of a piece are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drop {
    /// By `MADV_DONTNEED`.
    DontNeed,
    /// The same, after the piece lost the right to store and got it back.
    Protect,
    /// Mapped anew, which unmaps it.
    MapOver,
}

/// Pieces in a thread's range.
const RANGE: usize = 64;

/// Change and touch pieces of memory repeatedly, on each thread of one address space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Churn {
    /// What is done with a piece.
    pub work: Work,
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
struct ChurnSpan {
    start: Moment,
    end: Moment,
    pieces: u64,
}

impl Churn {
    /// Bytes that are mapped before the threads start, so that each has its range.
    fn range_bytes(&self) -> usize {
        match self.work {
            Work::Map => 0,
            Work::Apart => self.threads * RANGE * self.bytes,
            Work::Overlapping => RANGE * self.bytes,
        }
    }

    /// Where the piece of this thread and round begins in what is mapped, and how its pages are dropped.
    fn piece(&self, thread: usize, round: usize) -> (usize, Drop) {
        // Neighbours in time are none in memory; threads that share a range go through it in step.
        let place = round * 7 % RANGE;
        let range = if self.work == Work::Apart { thread * RANGE } else { 0 };
        let drop = match round % 4 {
            0 | 1 => Drop::DontNeed,
            2 => Drop::Protect,
            _ => Drop::MapOver,
        };
        ((range + place) * self.bytes, drop)
    }

    /// The mean time of a piece on its thread.
    fn sample(&self, threads: &[ChurnSpan]) -> Result<Sample, Skip> {
        let Some(first) = threads.first() else { return Err(Skip("no thread did anything".to_owned())) };
        let start = threads.iter().fold(first.start, |moment, thread| moment.earlier(thread.start));
        let end = threads.iter().fold(first.end, |moment, thread| moment.later(thread.end));
        let pieces: u64 = threads.iter().map(|thread| thread.pieces).sum();
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
