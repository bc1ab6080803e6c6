//! The receiving side of a migration: requests the pieces that the guest waits for, and maps those that arrive.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::link::Link;
use crate::bench::experiment::Skip;

#[derive(Default)]
pub(super) struct Received {
    /// Nanoseconds until all pieces had arrived and were mapped.
    pub(super) there: u64,
    /// Faults that it read.
    pub(super) events: u64,
    /// Pieces that it requested.
    pub(super) asked: u64,
}

/// How the receiver reads the guest's faults and changes its memory.
pub(super) trait Answers {
    /// The piece of the next fault that was not reported yet.
    fn next_fault(&mut self) -> Result<Option<usize>, Skip>;

    /// Writes a piece's contents. The guest does not see them before they are mapped.
    fn write(&mut self, piece: usize);

    /// Maps a piece that has arrived, and wakes the virtual CPUs that wait for it.
    fn map(&mut self, piece: usize) -> Result<(), Skip>;
}

/// Receives until all pieces have arrived. It polls to keep the latency low: it has a processor to itself. It
/// writes a piece's contents when the source begins to send it, so the write costs this thread no latency, as
/// with a device.
pub(super) fn run(
    answers: &mut impl Answers,
    link: &mut Link,
    fetched: &[AtomicBool],
) -> Result<Received, Skip> {
    let start = Instant::now();
    let now = || start.elapsed().as_nanos() as u64;
    let mut received = Received::default();
    let mut missing = fetched.len();
    while missing > 0 {
        while let Some(number) = answers.next_fault()? {
            received.events += 1;
            fetched[number].store(true, Ordering::Release);
            received.asked += u64::from(link.ask(now(), number, &mut |piece| answers.write(piece)));
        }
        if let Some(number) = link.arrived(now(), &mut |piece| answers.write(piece)) {
            answers.map(number)?;
            missing -= 1;
        }
    }
    received.there = now();
    Ok(received)
}
