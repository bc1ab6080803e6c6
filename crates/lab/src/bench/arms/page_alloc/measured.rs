//! The timed loops of `page-alloc`, the same for every arm.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::{Frames, Operation, PageAlloc};
use crate::bench::experiment::{Prepared, Sample, Skip};
use crate::bench::threads::{Meeting, together};

/// An arm that is ready: one source of frames per thread.
pub struct Measured<F> {
    case: PageAlloc,
    workers: Vec<Worker<F>>,
}

struct Worker<F> {
    source: F,
    bulk: Vec<usize>,
}

/// What one thread did.
struct Outcome {
    time: Duration,
    taken: u64,
}

impl<F: Frames> Measured<F> {
    /// Measures `case` with one of `sources` for each of its threads.
    pub fn new(case: &PageAlloc, sources: Vec<F>) -> Self {
        assert_eq!(sources.len(), case.threads, "one source per thread");
        // Written to once here, so that no fault of this list falls into a timed loop.
        let bulk = if case.operation == Operation::Pair { Vec::new() } else { vec![1; case.count] };
        let worker = |source| Worker { source, bulk: bulk.clone() };
        Self { case: case.clone(), workers: sources.into_iter().map(worker).collect() }
    }
}

impl<F: Frames> Prepared for Measured<F> {
    fn run(&mut self) -> Result<Sample, Skip> {
        let PageAlloc { operation, count, repeats, .. } = self.case;
        let body = |worker: &mut Worker<F>, meeting: &Meeting| match operation {
            Operation::Pair => worker.source.as_cpu(|source| pairs(source, count * repeats, meeting)),
            Operation::BulkAlloc | Operation::BulkFree => {
                let Worker { source, bulk } = worker;
                source.as_cpu(|source| bulks(source, bulk, operation, repeats, meeting))
            }
        };
        let outcomes = together(&mut self.workers, &self.case.cpus, body);
        let expected = (count * repeats) as u64;
        if let Some(short) = outcomes.iter().find(|outcome| outcome.taken < expected) {
            return Err(Skip(format!(
                "no frame after {} of {expected}: out of memory, or one was refused",
                short.taken
            )));
        }
        let slowest = outcomes.iter().map(|outcome| outcome.time).max().unwrap_or_default();
        let taken: u64 = outcomes.iter().map(|outcome| outcome.taken).sum();
        let mut sample =
            Sample::new(slowest.as_nanos() as f64 / expected as f64, taken).count("frames", taken);
        if operation != Operation::Pair {
            let different = distinct(self.workers.iter().map(|worker| worker.bulk.as_slice()));
            sample.checksum += different;
            sample = sample.count("different", different);
        }
        Ok(sample)
    }
}

/// Takes a frame and gives it back, `count` times.
fn pairs<F: Frames>(source: &mut F, count: usize, meeting: &Meeting) -> Outcome {
    meeting.wait();
    let start = Instant::now();
    let mut taken = 0;
    for _ in 0..count {
        let Some(frame) = source.alloc() else { break };
        source.free(black_box(frame));
        taken += 1;
    }
    Outcome { time: start.elapsed(), taken }
}

/// Takes a bulk and gives it back, `repeats` times, and times the half that the operation names. All threads are
/// in the same half at the same time.
fn bulks<F: Frames>(
    source: &mut F,
    bulk: &mut [usize],
    operation: Operation,
    repeats: usize,
    meeting: &Meeting,
) -> Outcome {
    let mut outcome = Outcome { time: Duration::ZERO, taken: 0 };
    for _ in 0..repeats {
        meeting.wait();
        let start = Instant::now();
        let taken = source.alloc_bulk(bulk);
        let alloc = start.elapsed();
        black_box(&*bulk);
        meeting.wait();
        let start = Instant::now();
        source.free_bulk(&bulk[..taken]);
        let free = start.elapsed();
        outcome.time += if operation == Operation::BulkAlloc { alloc } else { free };
        outcome.taken += taken as u64;
    }
    outcome
}

/// How many different frames the threads held at the same time.
fn distinct<'a>(bulks: impl Iterator<Item = &'a [usize]>) -> u64 {
    let mut frames: Vec<usize> = bulks.flatten().copied().collect();
    frames.sort_unstable();
    frames.dedup();
    frames.len() as u64
}
