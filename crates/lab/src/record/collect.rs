//! Empties the rings while the program runs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;

use nix::time::{ClockId, clock_gettime};

use super::assemble::Assembler;
use super::parse::Parser;
use super::perf::{self, Events};
use super::raw::{Raw, RawKind};
use super::summary::Summary;
use crate::trace::{TraceError, TraceWriter};

/// How long after its time a record may come: it takes its time stamp before it is written, and a virtual CPU may
/// be taken away in between.
const LATENESS_NS: u64 = 200_000_000;

/// How often the rings are looked at even if they are nearly empty.
const POLL_MS: u8 = 20;

/// What other threads of the recorder have to tell.
pub(super) enum Message {
    /// The user tier's system calls.
    Raw(Raw),
    /// The kernel's count of a process's faults.
    Counted { pid: u32, minor: u64, major: u64 },
}

/// What came of it.
pub(super) struct Collected {
    pub(super) writer: TraceWriter,
    pub(super) summary: Summary,
    pub(super) lost: u64,
}

/// The clock of all times in a trace.
pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("Linux always has a monotonic clock");
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

/// Collects until `stop` is set, and what is there at that moment.
pub(super) fn run(
    mut events: Events,
    parser: &Parser,
    writer: TraceWriter,
    messages: Receiver<Message>,
    stop: &AtomicBool,
) -> Result<Collected, TraceError> {
    let mut assembler = Assembler::new(writer);
    let mut lost = 0;
    loop {
        let last = stop.load(Ordering::Acquire);
        let horizon = now_ns().saturating_sub(LATENESS_NS);
        for ring in &mut events.rings {
            ring.drain(|record| {
                if let Some(raw) = parser.record(record) {
                    if let RawKind::Lost { records } = raw.kind {
                        lost += records;
                    }
                    assembler.push(raw);
                }
            });
        }
        for message in messages.try_iter() {
            match message {
                Message::Raw(raw) => assembler.push(raw),
                Message::Counted { pid, minor, major } => assembler.counted(pid, minor, major),
            }
        }
        if last {
            let (writer, summary) = assembler.finish()?;
            return Ok(Collected { writer, summary, lost });
        }
        assembler.advance(horizon)?;
        perf::wait(&events.leaders, POLL_MS);
    }
}
