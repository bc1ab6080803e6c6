//! The receiving side of a migration: requests the pieces that the guest waits for, and maps those that arrive.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::link::Link;
use crate::bench::experiment::Skip;

/// What the receiver did.
#[derive(Default)]
pub(super) struct Received {
    /// Nanoseconds until all was here and mapped.
    pub(super) there: u64,
    /// Faults that it read.
    pub(super) events: u64,
    /// Pieces that it asked for.
    pub(super) asked: u64,
}

/// The faults and the memory of the guest, as the receiver has them.
pub(super) trait Answers {
    /// The piece that a virtual CPU waits for, if one does that was not told of yet.
    fn next_fault(&mut self) -> Result<Option<usize>, Skip>;

    /// Puts the contents of a piece where the guest cannot see them until they are mapped.
    fn write(&mut self, piece: usize);

    /// Maps a piece that has come, and wakes the virtual CPUs that wait for it.
    fn map(&mut self, piece: usize) -> Result<(), Skip>;
}

/// Works until all pieces are here. It polls for the sake of latency: it has a processor to itself. A piece's contents are written
/// when the source begins to send it, which costs this thread what it costs a device to tell of.
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
