//! What the loops share: a thread with its frames, its times, and further metrics.

use super::places::Places;
use crate::bench::arms::page_alloc::case::{Frames, PageAlloc};
use crate::bench::experiment::{Better, Metric, Skip};
use crate::host::cycles::{Moment, Span};

/// As [`ALLOC`](crate::bench::experiment::ALLOC) in cycles.
pub(super) const ALLOC_CYCLES: Metric =
    Metric { name: "alloc-cycles", unit: "cycles", better: Better::Lower };
/// As [`FREE`](crate::bench::experiment::FREE) in cycles.
pub(super) const FREE_CYCLES: Metric = Metric { name: "free-cycles", unit: "cycles", better: Better::Lower };
/// Nanoseconds per page of the ring between two threads, without an allocator.
pub(super) const RING: Metric = Metric { name: "ring", unit: "ns", better: Better::Lower };
/// Nanoseconds of a pair in the same memory while it was empty.
pub(super) const EMPTY: Metric = Metric { name: "empty", unit: "ns", better: Better::Lower };
/// Nanoseconds of the longest call, each counted with its shortest replay.
pub(super) const LONGEST: Metric = Metric { name: "longest", unit: "ns", better: Better::Lower };
/// Nanoseconds for each frame while the memory is filled.
pub(super) const FILL: Metric = Metric { name: "fill", unit: "ns", better: Better::Lower };
/// Nanoseconds of a request that is refused because nothing is left.
pub(super) const REFUSED: Metric = Metric { name: "refused", unit: "ns", better: Better::Lower };

/// A thread's source and the frames that it holds.
pub(super) struct Worker<F: Frames> {
    pub(super) source: F,
    pub(super) frames: Places<F::Frame>,
}

/// The work of one thread, with its start and end.
pub(super) struct ThreadWork {
    pub(super) start: Moment,
    pub(super) end: Moment,
    pub(super) taken: u64,
}

/// CPU time per page: the time from the first start to the last end, times the working CPUs, over all pages.
/// With no more threads than CPUs, this is the time of a page as its thread sees it.
pub(super) fn per_page(case: &PageAlloc, threads: &[ThreadWork]) -> Result<(Span, u64), Skip> {
    let expected = (case.count * case.repeats) as u64;
    if let Some(short) = threads.iter().find(|thread| thread.taken < expected) {
        return Err(no_frame(short.taken, expected));
    }
    let Some(first) = threads.first() else { return Err(Skip("no thread did anything".to_owned())) };
    let start = threads.iter().fold(first.start, |moment, thread| moment.earlier(thread.start));
    let end = threads.iter().fold(first.end, |moment, thread| moment.later(thread.end));
    let taken: u64 = threads.iter().map(|thread| thread.taken).sum();
    let busy = case.threads.min(case.cpus.len()) as f64;
    Ok((start.until(end) * (busy / taken as f64), taken))
}

pub(super) fn no_frame(taken: u64, expected: u64) -> Skip {
    Skip(format!("no frame after {taken} of {expected}: the allocator is out of memory, or refused one"))
}

/// The number of different `frames`.
pub(super) fn different<T: Ord>(frames: impl Iterator<Item = T>) -> u64 {
    let mut frames: Vec<T> = frames.collect();
    frames.sort_unstable();
    frames.dedup();
    frames.len() as u64
}
