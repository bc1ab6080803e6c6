//! The published sweep: allocates a batch one by one, and frees it one by one in the same order.
//!
//! Batches are timed from outside, many together. A second pass reads the counter around each half and
//! subtracts the cost of reading. The processor overlaps the halves of small batches, so these halves are
//! only an indication. One untimed batch warms the caches first.

use std::hint::black_box;

use super::work::{ALLOC_CYCLES, FREE_CYCLES, ThreadWork, Worker, different, no_frame, per_page};
use crate::bench::arms::page_alloc::case::{Frames, PageAlloc, give_each, take_each};
use crate::bench::experiment::{ALLOC, FREE, Sample, Skip};
use crate::host::cycles::{self, Moment, Span};
use crate::host::threads::{Meeting, together};

/// The sum of each half over all batches of one thread, in cycles.
struct Halves {
    alloc: u64,
    free: u64,
    taken: u64,
}

pub(super) fn run<F: Frames>(case: &PageAlloc, workers: &mut [Worker<F>]) -> Result<Sample, Skip> {
    let repeats = case.repeats;
    let threads = together(workers, &case.cpus, |worker: &mut Worker<F>, meeting: &Meeting| {
        let Worker { source, frames } = worker;
        source.as_cpu(|source| whole(source, frames, repeats, meeting))
    });
    let (total, taken) = per_page(case, &threads)?;
    let halves = together(workers, &case.cpus, |worker: &mut Worker<F>, meeting: &Meeting| {
        let Worker { source, frames } = worker;
        source.as_cpu(|source| apart(source, frames, repeats, meeting))
    });
    let pages = (case.count * repeats) as u64;
    if let Some(short) = halves.iter().find(|halves| halves.taken < pages) {
        return Err(no_frame(short.taken, pages));
    }
    // Threads in excess of the CPUs wait inside a half too, so only the mean is meaningful for them.
    let reading = (cycles::reading_cost() * repeats as u64) as f64;
    let mean = |half: fn(&Halves) -> u64| {
        let sum: f64 = halves.iter().map(|halves| (half(halves) as f64 - reading).max(0.0)).sum();
        Span::of_cycles(sum / (halves.len() as u64 * pages) as f64)
    };
    let (alloc, free) = (mean(|halves| halves.alloc), mean(|halves| halves.free));
    let held: u64 = workers.iter().map(|worker| different(worker.frames.iter())).sum();
    Ok(Sample::of(total, 1.0, taken + held)
        .metric(ALLOC, alloc.nanoseconds)
        .metric(FREE, free.nanoseconds)
        .metric(ALLOC_CYCLES, alloc.cycles)
        .metric(FREE_CYCLES, free.cycles)
        .count("frames", taken)
        .count("different", held))
}

fn whole<F: Frames>(
    source: &mut F,
    frames: &mut [F::Frame],
    repeats: usize,
    meeting: &Meeting,
) -> ThreadWork {
    batch(source, frames);
    meeting.wait();
    let start = Moment::now();
    let mut taken = 0;
    for _ in 0..repeats {
        taken += batch(source, frames);
    }
    ThreadWork { start, end: Moment::now(), taken }
}

/// Allocates and frees a batch; returns the frames that it had.
#[inline(always)]
fn batch<F: Frames>(source: &mut F, frames: &mut [F::Frame]) -> u64 {
    let got = take_each(source, frames);
    give_each(source, &black_box(&*frames)[..got]);
    got as u64
}

fn apart<F: Frames>(source: &mut F, frames: &mut [F::Frame], repeats: usize, meeting: &Meeting) -> Halves {
    meeting.wait();
    let mut halves = Halves { alloc: 0, free: 0, taken: 0 };
    for _ in 0..repeats {
        let start = cycles::now();
        let got = take_each(source, frames);
        let between = cycles::now();
        give_each(source, &black_box(&*frames)[..got]);
        halves.free += cycles::now().wrapping_sub(between);
        halves.alloc += between.wrapping_sub(start);
        halves.taken += got as u64;
    }
    halves
}
