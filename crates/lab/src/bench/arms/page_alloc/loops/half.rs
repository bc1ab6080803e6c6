//! Allocates many frames, frees them, and times one half.

use std::hint::black_box;

use super::work::{Worker, different, no_frame};
use crate::bench::arms::page_alloc::case::{Back, Frames, Half, PageAlloc, Timed, give_each, take_each};
use crate::bench::experiment::{Sample, Skip};
use crate::host::cycles::{Moment, Span};
use crate::host::threads::{Meeting, together};

/// Seed of the random order; fixed, so that runs agree.
pub(super) const ORDER_SEED: u64 = 0x9a6e;

/// The time of one thread's timed halves together.
struct Halves {
    time: Span,
    taken: u64,
}

pub(super) fn run<F: Frames>(
    case: &PageAlloc,
    workers: &mut [Worker<F>],
    half: Half,
) -> Result<Sample, Skip> {
    let repeats = case.repeats;
    let outcomes = together(workers, &case.cpus, |worker: &mut Worker<F>, meeting: &Meeting| {
        let Worker { source, frames } = worker;
        source.as_cpu(|source| halves(source, frames, half, repeats, meeting))
    });
    let expected = (case.count * repeats) as u64;
    if let Some(short) = outcomes.iter().find(|outcome| outcome.taken < expected) {
        return Err(no_frame(short.taken, expected));
    }
    let longer = |one: Span, other: Span| if other.nanoseconds > one.nanoseconds { other } else { one };
    let slowest = outcomes.iter().map(|outcome| outcome.time).fold(Span::default(), longer);
    let taken: u64 = outcomes.iter().map(|outcome| outcome.taken).sum();
    let held = different(workers.iter().flat_map(|worker| worker.frames.iter()));
    Ok(Sample::of(slowest, expected as f64, taken + held).count("frames", taken).count("different", held))
}

/// All threads are in the same half at the same time.
fn halves<F: Frames>(
    source: &mut F,
    frames: &mut [F::Frame],
    half: Half,
    repeats: usize,
    meeting: &Meeting,
) -> Halves {
    let mut outcome = Halves { time: Span::default(), taken: 0 };
    for turn in 0..=repeats {
        meeting.wait();
        let start = Moment::now();
        let taken = if half.bulk { source.take_bulk(frames) } else { take_each(source, frames) };
        let alloc = start.until(Moment::now());
        let frames = &mut black_box(&mut *frames)[..taken];
        match half.back {
            Back::NewestFirst => frames.reverse(),
            Back::Random => fastrand::Rng::with_seed(ORDER_SEED).shuffle(frames),
        }
        meeting.wait();
        let start = Moment::now();
        if half.bulk {
            source.give_bulk(frames);
        } else {
            give_each(source, frames);
        }
        let free = start.until(Moment::now());
        // The first turn warms the caches and does not count.
        if turn > 0 {
            outcome.time = outcome.time + if half.timed == Timed::Alloc { alloc } else { free };
            outcome.taken += taken as u64;
        }
    }
    outcome
}
