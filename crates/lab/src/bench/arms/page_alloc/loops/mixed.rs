//! The longest call of a mix of calls in a memory that is 90 % full with random holes.
//!
//! The same calls are replayed on fresh memories. A call counts with its shortest replay, since a time that
//! one replay only shows comes from a timer tick or the host. The longest of these is the figure.

use super::filled::nine_tenths;
use super::work::LONGEST;
use crate::bench::arms::page_alloc::case::{Frames, PageAlloc};
use crate::bench::experiment::{Sample, Skip};
use crate::host::cycles::{self, Span};

const REPLAYS: usize = 6;

/// Seed of the calls; fixed, so that runs agree.
const CALLS_SEED: u64 = 0xca115;

/// One call.
#[derive(Clone, Copy)]
enum Call {
    Take(u8),
    /// Frees the folio at this index of the held ones, modulo their number.
    Give(usize),
}

pub(super) fn run<F: Frames>(
    case: &PageAlloc,
    build: &mut dyn FnMut() -> Result<F, Skip>,
) -> Result<Sample, Skip> {
    let calls = calls(case.count);
    let mut least = vec![u64::MAX; calls.len()];
    let mut refused = None;
    for _ in 0..REPLAYS {
        let times = build()?.as_cpu(|source| {
            let held = nine_tenths(case, source).into_iter().map(|frame| (frame, 0)).collect();
            replay(source, held, &calls, &mut least)
        });
        if *refused.get_or_insert(times) != times {
            return Err(Skip("two replays of the same calls went different ways".to_owned()));
        }
    }
    let longest = least.iter().max().copied().unwrap_or_default();
    let sum: u64 = least.iter().sum();
    Ok(Sample::of(Span::of_cycles(sum as f64), calls.len() as f64, calls.len() as u64)
        .metric(LONGEST, cycles::to_nanoseconds(longest as f64))
        .count("calls", calls.len() as u64)
        .count("refused", refused.unwrap_or_default()))
}

/// As many allocations as frees, mostly of single frames.
fn calls(count: usize) -> Vec<Call> {
    let mut rng = fastrand::Rng::with_seed(CALLS_SEED);
    let mut call = |_| {
        if rng.bool() {
            return Call::Give(rng.usize(..));
        }
        Call::Take(match rng.u8(..100) {
            0..80 => 0,
            80..88 => 1,
            88..93 => 2,
            93..97 => 3,
            97..99 => 4,
            _ => 9,
        })
    };
    (0..count).map(&mut call).collect()
}

/// Makes the calls and keeps the shortest time of each; returns the refused allocations.
fn replay<F: Frames>(
    source: &mut F,
    mut held: Vec<(F::Frame, u8)>,
    calls: &[Call],
    least: &mut [u64],
) -> u64 {
    let mut refused = 0;
    for (call, least) in calls.iter().zip(least) {
        let time = match *call {
            Call::Give(_) if held.is_empty() => 0,
            Call::Give(place) => {
                let place = place % held.len();
                let (frame, order) = held.swap_remove(place);
                let start = cycles::now();
                give(source, frame, order);
                cycles::now().wrapping_sub(start)
            }
            Call::Take(order) => {
                let start = cycles::now();
                let frame = take(source, order);
                let time = cycles::now().wrapping_sub(start);
                match frame {
                    Some(frame) => held.push((frame, order)),
                    None => refused += 1,
                }
                time
            }
        };
        *least = time.min(*least);
    }
    refused
}

fn take<F: Frames>(source: &mut F, order: u8) -> Option<F::Frame> {
    match order {
        0 => source.take::<0>(),
        1 => source.take::<1>(),
        2 => source.take::<2>(),
        3 => source.take::<3>(),
        4 => source.take::<4>(),
        _ => source.take::<9>(),
    }
}

fn give<F: Frames>(source: &mut F, frame: F::Frame, order: u8) {
    match order {
        0 => source.give::<0>(frame),
        1 => source.give::<1>(frame),
        2 => source.give::<2>(frame),
        3 => source.give::<3>(frame),
        4 => source.give::<4>(frame),
        _ => source.give::<9>(frame),
    }
}
