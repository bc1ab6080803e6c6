//! The timed loops of `page-alloc`, the same for every arm, one shape of work per file.

mod cross;
mod crowded;
mod half;
mod mixed;
mod pair;
mod places;
mod sweep;

use super::{Frames, Operation, PageAlloc};
use crate::bench::experiment::{Better, Metric, Prepared, Sample, Skip};
use crate::host::cycles::{Moment, Span};
use places::Places;

/// As [`ALLOC`](crate::bench::experiment::ALLOC) in cycles.
const ALLOC_CYCLES: Metric = Metric { name: "alloc-cycles", unit: "cycles", better: Better::Lower };
/// As [`FREE`](crate::bench::experiment::FREE) in cycles.
const FREE_CYCLES: Metric = Metric { name: "free-cycles", unit: "cycles", better: Better::Lower };
/// Nanoseconds for each page that the ring between two threads takes without an allocator.
const RING: Metric = Metric { name: "ring", unit: "ns", better: Better::Lower };
/// Nanoseconds of a pair in the same memory while it was empty.
const EMPTY: Metric = Metric { name: "empty", unit: "ns", better: Better::Lower };
/// Nanoseconds of the longest call, each call counted with the least of its replays.
const LONGEST: Metric = Metric { name: "longest", unit: "ns", better: Better::Lower };
/// Nanoseconds for each frame while the memory is filled.
const FILL: Metric = Metric { name: "fill", unit: "ns", better: Better::Lower };
/// Nanoseconds of a request that is refused because nothing is left.
const REFUSED: Metric = Metric { name: "refused", unit: "ns", better: Better::Lower };

/// An arm that is ready. `build` gives a source for each thread, over a memory of which nothing is in use.
struct Measured<F: Frames, B> {
    case: PageAlloc,
    build: B,
    workers: Vec<Worker<F>>,
}

/// A thread's source and the frames that it holds.
struct Worker<F: Frames> {
    source: F,
    frames: Places<F::Frame>,
}

/// What one thread did from when to when.
struct Stint {
    start: Moment,
    end: Moment,
    taken: u64,
}

/// Makes `case` ready. Its sources are built now and once, unless every repetition needs a memory of its own.
///
/// # Errors
/// Those of `build`.
pub(super) fn prepare<'a, F: Frames + 'a>(
    case: &PageAlloc,
    mut build: impl FnMut() -> Result<Vec<F>, Skip> + 'a,
) -> Result<Box<dyn Prepared + 'a>, Skip> {
    let held = match case.operation {
        Operation::Sweep | Operation::Half(_) => case.count,
        Operation::Pair(_) | Operation::Cross | Operation::Crowded(_) => 0,
    };
    let worker = |source| Worker { source, frames: Places::new(held) };
    let workers = match case.operation {
        Operation::Crowded(_) => Vec::new(),
        _ => build()?.into_iter().map(worker).collect(),
    };
    Ok(Box::new(Measured { case: case.clone(), build, workers }))
}

impl<F: Frames, B: FnMut() -> Result<Vec<F>, Skip>> Prepared for Measured<F, B> {
    fn run(&mut self) -> Result<Sample, Skip> {
        self.workers.iter_mut().for_each(|worker| worker.frames.shift());
        match self.case.operation {
            Operation::Pair(order) => pair::run(&self.case, &mut self.workers, order),
            Operation::Sweep => sweep::run(&self.case, &mut self.workers),
            Operation::Half(half) => half::run(&self.case, &mut self.workers, half),
            Operation::Cross => cross::run(&self.case, &mut self.workers),
            Operation::Crowded(what) => crowded::run(&self.case, what, &mut || one((self.build)()?)),
        }
    }
}

/// The source of a case with one thread.
fn one<F>(sources: Vec<F>) -> Result<F, Skip> {
    sources.into_iter().next().ok_or_else(|| Skip("no thread, no source of frames".to_owned()))
}

/// What one CPU spent on one page: the time from the first start to the last end, times the CPUs that worked, over
/// all pages. With no more threads than CPUs that is the time of a page as its thread sees it.
fn per_page(case: &PageAlloc, stints: &[Stint]) -> Result<(Span, u64), Skip> {
    let expected = (case.count * case.repeats) as u64;
    if let Some(short) = stints.iter().find(|stint| stint.taken < expected) {
        return Err(no_frame(short.taken, expected));
    }
    let Some(first) = stints.first() else { return Err(Skip("no thread did anything".to_owned())) };
    let start = stints.iter().fold(first.start, |moment, stint| moment.earlier(stint.start));
    let end = stints.iter().fold(first.end, |moment, stint| moment.later(stint.end));
    let taken: u64 = stints.iter().map(|stint| stint.taken).sum();
    let busy = case.threads.min(case.cpus.len()) as f64;
    Ok((start.until(end) * (busy / taken as f64), taken))
}

fn no_frame(taken: u64, expected: u64) -> Skip {
    Skip(format!("no frame after {taken} of {expected}: out of memory, or one was refused"))
}

/// How many of `frames` are different.
fn different<T: Ord>(frames: impl Iterator<Item = T>) -> u64 {
    let mut frames: Vec<T> = frames.collect();
    frames.sort_unstable();
    frames.dedup();
    frames.len() as u64
}

#[cfg(test)]
mod tests;
