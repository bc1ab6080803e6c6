//! Allocates one folio and frees it.

use std::hint::black_box;

use super::work::{ThreadWork, Worker, per_page};
use crate::bench::arms::page_alloc::case::{Frames, PageAlloc};
use crate::bench::experiment::{Sample, Skip};
use crate::host::cycles::Moment;
use crate::host::threads::{Meeting, together};

pub(super) fn run<F: Frames>(case: &PageAlloc, workers: &mut [Worker<F>], order: u8) -> Result<Sample, Skip> {
    // Kernel code requests constant orders, so each order has its own compiled loop.
    let pairs: fn(&mut F, usize, &Meeting) -> ThreadWork = match order {
        0 => pairs::<F, 0>,
        1 => pairs::<F, 1>,
        2 => pairs::<F, 2>,
        3 => pairs::<F, 3>,
        4 => pairs::<F, 4>,
        5 => pairs::<F, 5>,
        6 => pairs::<F, 6>,
        7 => pairs::<F, 7>,
        8 => pairs::<F, 8>,
        9 => pairs::<F, 9>,
        other => return Err(Skip(format!("no loop is compiled for order {other}"))),
    };
    let count = case.count * case.repeats;
    let threads = together(workers, &case.cpus, |worker: &mut Worker<F>, meeting: &Meeting| {
        worker.source.as_cpu(|source| pairs(source, count, meeting))
    });
    let (span, taken) = per_page(case, &threads)?;
    Ok(Sample::of(span, 1.0, taken).count("frames", taken << order))
}

fn pairs<F: Frames, const ORDER: u8>(source: &mut F, count: usize, meeting: &Meeting) -> ThreadWork {
    meeting.wait();
    let start = Moment::now();
    let taken = pairs_of::<F, ORDER>(source, count);
    ThreadWork { start, end: Moment::now(), taken }
}

/// Allocates and frees a folio, `count` times; returns how often it got one.
#[inline(always)]
pub(super) fn pairs_of<F: Frames, const ORDER: u8>(source: &mut F, count: usize) -> u64 {
    for done in 0..count {
        let Some(frame) = source.take::<ORDER>() else { return done as u64 };
        source.give::<ORDER>(black_box(frame));
    }
    count as u64
}
