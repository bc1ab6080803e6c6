//! Frames that are freed or allocated all over the memory, so that most of what the allocator knows of them is in no
//! near cache. Every repetition has its own memory.

use std::hint::black_box;
use std::num::Wrapping;

use super::filled::nine_tenths;
use super::half::ORDER_SEED;
use super::work::{different, no_frame};
use crate::bench::arms::page_alloc::case::{Frames, PageAlloc, give_each, take_each};
use crate::bench::experiment::{ALLOC, FREE, Sample, Skip};
use crate::host::cycles::{self, Moment, Span};

/// Bytes that fill the caches of the first and the second level several times over.
const EVICTING: usize = 8 << 20;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Allocates `count` frames one by one, and times their frees in random order.
pub(super) fn emptied<F: Frames>(case: &PageAlloc, source: &mut F) -> Result<Sample, Skip> {
    let mut frames = vec![F::Frame::default(); case.count];
    let taken = take_each(source, &mut frames);
    if taken < case.count {
        return Err(no_frame(taken as u64, case.count as u64));
    }
    fastrand::Rng::with_seed(ORDER_SEED).shuffle(&mut frames);
    let start = Moment::now();
    give_each(source, black_box(&frames));
    let span = start.until(Moment::now());
    let held = different(frames.iter());
    Ok(Sample::of(span, case.count as f64, held).count("frames", taken as u64).count("different", held))
}

/// Times `repeats` batches, allocated one by one and freed one by one in the same order, and each half.
pub(super) fn batches<F: Frames>(case: &PageAlloc, source: &mut F) -> Result<Sample, Skip> {
    let in_use = nine_tenths(case, source);
    let mut frames = vec![F::Frame::default(); case.count];
    let (mut alloc, mut free) = (Span::default(), Span::default());
    for _ in 0..case.repeats {
        let start = Moment::now();
        let taken = take_each(source, &mut frames);
        let between = Moment::now();
        give_each(source, &black_box(&*frames)[..taken]);
        alloc = alloc + start.until(between);
        free = free + between.until(Moment::now());
        if taken < case.count {
            return Err(no_frame(taken as u64, case.count as u64));
        }
    }
    let pages = (case.count * case.repeats) as f64;
    let held = different(frames.iter());
    Ok(Sample::of(alloc + free, pages, held)
        .metric(ALLOC, alloc.nanoseconds / pages)
        .metric(FREE, free.nanoseconds / pages)
        .count("different", held)
        .count("frames_in_use", in_use.len() as u64))
}

/// Times single frees of random frames and single allocations.
pub(super) fn cold<F: Frames>(case: &PageAlloc, source: &mut F) -> Result<Sample, Skip> {
    let mut held = nine_tenths(case, source);
    let other = vec![1_u8; EVICTING];
    let mut rng = fastrand::Rng::with_seed(ORDER_SEED);
    let (mut alloc, mut free) = (0_u64, 0_u64);
    for done in 0..case.count {
        let place = rng.usize(..held.len());
        let frame = held[place];
        evict(&other);
        let start = cycles::now();
        source.give::<0>(frame);
        free += cycles::now().wrapping_sub(start);
        evict(&other);
        let start = cycles::now();
        let taken = source.take::<0>();
        alloc += cycles::now().wrapping_sub(start);
        held[place] = taken.ok_or_else(|| no_frame(done as u64, case.count as u64))?;
    }
    let reading = cycles::reading_cost() * case.count as u64;
    let span = |cycles: u64| Span::of_cycles(cycles.saturating_sub(reading) as f64);
    let (alloc, free) = (span(alloc), span(free));
    let count = case.count as f64;
    Ok(Sample::of(alloc + free, count, case.count as u64)
        .metric(ALLOC, alloc.nanoseconds / count)
        .metric(FREE, free.nanoseconds / count)
        .count("frames_in_use", held.len() as u64))
}

/// Reads a byte of each line of `other`.
fn evict(other: &[u8]) {
    let sum: Wrapping<u8> = other.iter().step_by(LINE).map(|byte| Wrapping(*byte)).sum();
    black_box(sum);
}
