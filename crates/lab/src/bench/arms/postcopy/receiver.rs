//! The receiving side of a migration: reads what the guest waits for, asks for it, and maps what has come.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use quire::addr::VirtAddr;
use quire::platform::Platform;
use quire::vm::{AnswerMode, Mm, Userfault, UserfaultEvent};

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

/// Works until all pieces are here. It polls, as who wants latency does: it has a processor to itself. `write` puts a piece's contents
/// into the file when the source begins to send it, which costs this thread what it costs a device to tell of: nobody sees
/// them before they are mapped.
pub(super) fn run<P: Platform>(
    handler: &Userfault<'_, P>,
    mm: &Mm<'_, P>,
    (base, piece): (VirtAddr, u64),
    link: &mut Link,
    fetched: &[AtomicBool],
    mut write: impl FnMut(usize),
) -> Result<Received, Skip> {
    let start = Instant::now();
    let now = || start.elapsed().as_nanos() as u64;
    let mut received = Received::default();
    let mut missing = fetched.len();
    while missing > 0 {
        while let Some(event) = handler.next_event() {
            if let UserfaultEvent::Fault(fault) = event.keep() {
                let number = ((fault.addr.0 - base.0) / piece) as usize;
                received.events += 1;
                fetched[number].store(true, Ordering::Release);
                received.asked += u64::from(link.ask(now(), number, &mut write));
            }
        }
        if let Some(number) = link.arrived(now(), &mut write) {
            let addr = base.add(number as u64 * piece);
            let mapped = mm.userfault_continue(addr, piece, AnswerMode::WAKE);
            mapped.all().map_err(|error| Skip(format!("a piece that came was not mapped: {error}")))?;
            missing -= 1;
        }
    }
    received.there = now();
    Ok(received)
}
