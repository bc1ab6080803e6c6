//! The figures of one migration, from the records of its threads.

use hdrhistogram::Histogram;

use super::case::{IDLE, LARGE, LONGEST, P99, STALL, THERE};
use super::guest::GuestWaits;
use super::receiver::Received;
use crate::bench::experiment::{Sample, Skip};
use crate::bench::folio::PAGE;

/// The longest fetch that the histogram distinguishes.
const LONGEST_NS: u64 = 60_000_000_000;

/// The result of one thread.
pub(super) enum Part {
    /// A virtual CPU.
    GuestWaits(GuestWaits),
    /// The receiver's work, for how long the wire was busy, and when the largest leaves mapped all memory.
    Received { received: Received, busy: u64, large: u64 },
}

/// The figures of a migration of `pieces` pieces. `load` reads the guest's memory, all of which has arrived.
pub(super) fn sample(
    parts: Vec<Part>,
    pieces: usize,
    bytes: u64,
    mut load: impl FnMut(u64) -> Option<u64>,
) -> Result<Sample, Skip> {
    let mut fetches =
        Histogram::<u64>::new_with_bounds(1, LONGEST_NS, 3).map_err(|error| Skip(error.to_string()))?;
    let (mut stall, mut accesses, mut end) = (0, 0, None);
    for part in parts {
        match part {
            Part::GuestWaits(waits) => {
                if let Some(page) = waits.wrong {
                    return Err(Skip(format!("page {page} held other contents than were sent")));
                }
                waits.fetches.iter().for_each(|&took| fetches.saturating_record(took));
                (stall, accesses) = (stall + waits.stall, accesses + waits.accesses);
            }
            Part::Received { received, busy, large } => end = Some((received, busy, large)),
        }
    }
    let (received, busy, large) = end.ok_or_else(|| Skip("the receiver did not run".to_owned()))?;
    if fetches.is_empty() {
        return Err(Skip(
            "the stream ended before a virtual CPU waited: give the guest more memory, or a slower link (--link-rate)"
                .to_owned(),
        ));
    }
    let sum = (0..bytes).step_by(PAGE).map(|at| load(at).unwrap_or(0));
    let checksum = sum.fold(0_u64, u64::wrapping_add);
    Ok(Sample::new(fetches.value_at_quantile(0.5) as f64, checksum)
        .metric(P99, fetches.value_at_quantile(0.99) as f64)
        .metric(LONGEST, fetches.max() as f64)
        .metric(STALL, stall as f64)
        .metric(IDLE, received.there.saturating_sub(busy) as f64)
        .metric(THERE, received.there as f64)
        .metric(LARGE, large as f64)
        .count("fetches", received.asked)
        .count("waited", fetches.len())
        .count("events", received.events)
        .count("pieces", pieces as u64)
        .count("accesses", accesses))
}
