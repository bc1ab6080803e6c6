//! The cost of a call in a memory that was filled before. Every repetition fills its own memory.

use super::filled::{nine_tenths, take_all};
use super::pair::pairs_of;
use super::work::{EMPTY, FILL, REFUSED, no_frame};
use super::{mixed, scattered};
use crate::bench::arms::page_alloc::case::{Crowded, Frames, PageAlloc};
use crate::bench::experiment::{Sample, Skip};
use crate::host::cycles::{Moment, Span};

/// Frames that are left free where frames are scarce.
const LEFT_FREE: usize = 8;

/// Refused requests over which the time of one is measured.
const REFUSALS: usize = 64;

pub(super) fn run<F: Frames>(
    case: &PageAlloc,
    what: Crowded,
    build: &mut dyn FnMut() -> Result<F, Skip>,
) -> Result<Sample, Skip> {
    match what {
        Crowded::Pairs => build()?.as_cpu(|source| pairs(case, source)),
        Crowded::Scarce => build()?.as_cpu(|source| scarce(case, source)),
        Crowded::Mixed => mixed::run(case, build),
        Crowded::Emptied => build()?.as_cpu(|source| scattered::emptied(case, source)),
        Crowded::Batches => build()?.as_cpu(|source| scattered::batches(case, source)),
        Crowded::Cold => build()?.as_cpu(|source| scattered::cold(case, source)),
    }
}

fn pairs<F: Frames>(case: &PageAlloc, source: &mut F) -> Result<Sample, Skip> {
    let empty = timed_pairs(source, case.count)?;
    let in_use = nine_tenths(case, source);
    let full = timed_pairs(source, case.count)?;
    Ok(Sample::of(full, case.count as f64, case.count as u64)
        .metric(EMPTY, empty.nanoseconds / case.count as f64)
        .count("frames_in_use", in_use.len() as u64))
}

fn scarce<F: Frames>(case: &PageAlloc, source: &mut F) -> Result<Sample, Skip> {
    let start = Moment::now();
    let mut frames = take_all(case, source);
    let fill = start.until(Moment::now());
    let left = source.free_frames();
    if let Some(left @ 1..) = left {
        return Err(Skip(format!("out of memory after {} frames, though {left} were free", frames.len())));
    }
    let start = Moment::now();
    if (0..REFUSALS).any(|_| source.take::<0>().is_some()) {
        return Err(Skip(format!(
            "a request after {} frames was refused, and the next one was not",
            frames.len()
        )));
    }
    let refused = start.until(Moment::now());
    let obtained = frames.len();
    if obtained <= LEFT_FREE {
        return Err(Skip(format!("only {obtained} frames in the whole memory")));
    }
    frames.drain(..LEFT_FREE).for_each(|frame| source.give::<0>(frame));
    let pairs = timed_pairs(source, case.count)?;
    let sample = Sample::of(pairs, case.count as f64, case.count as u64)
        .metric(FILL, fill.nanoseconds / obtained as f64)
        .metric(REFUSED, refused.nanoseconds / REFUSALS as f64)
        .count("frames", obtained as u64);
    Ok(left.into_iter().fold(sample, |sample, left| sample.count("left", left)))
}

fn timed_pairs<F: Frames>(source: &mut F, count: usize) -> Result<Span, Skip> {
    let start = Moment::now();
    let taken = pairs_of::<F, 0>(source, count);
    let span = start.until(Moment::now());
    if taken < count as u64 { Err(no_frame(taken, count as u64)) } else { Ok(span) }
}
