//! Empties the rings while the program runs.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;

use super::assemble::Assembler;
use super::feed::Feed;
use super::options::Interface;
use super::overhead::{Governor, Overhead};
use super::raw::{Raw, now_ns};
use super::summary::Summary;
use crate::trace::{TraceError, TraceWriter};

/// How late a record may arrive: the kernel takes its time stamp before it writes it, and a virtual CPU may
/// be preempted in between.
const LATENESS_NS: u64 = 200_000_000;

/// How often the rings are read even if they are nearly empty.
const POLL_MS: u8 = 20;

/// A message of another thread of the recorder.
pub(super) enum Message {
    /// The user tier's system calls.
    Raw(Raw),
    /// The kernel's count of a process's faults.
    Counted { pid: u32, minor: u64, major: u64 },
}

/// The result of collecting.
pub(super) struct Collected {
    pub(super) writer: TraceWriter,
    pub(super) summary: Summary,
    /// Size in bytes of the largest ring, if the rings of the start became too small.
    pub(super) grown_to: Option<usize>,
    /// Of a recording that has a bound.
    pub(super) overhead: Option<Overhead>,
    /// What told faults and calls in the privileged tier.
    pub(super) interface: Option<Interface>,
    /// Open still, since closing them takes long.
    pub(super) events: Vec<OwnedFd>,
}

/// If this many records wait for an older call or fault to end, they wait no longer.
const MOST_WAITING: usize = 1 << 20;

/// The end of the recording; this value while it has none.
pub(super) const GO_ON: u64 = 0;

/// A tier without a tracer has nothing to hear of it.
pub(super) const ALL_HEARD: u64 = u64::MAX;

/// Collects until `end_ns` is no longer [`GO_ON`], and then all records up to that time.
/// Reports of a tracer have been sent as messages up to `heard_ns`; what is younger waits for them.
pub(super) fn run(
    mut feed: Feed,
    mut assembler: Assembler,
    mut governor: Option<Governor>,
    messages: Receiver<Message>,
    heard_ns: &AtomicU64,
    end_ns: &AtomicU64,
) -> Result<Collected, TraceError> {
    loop {
        let end_ns = end_ns.load(Ordering::Acquire);
        let last = end_ns != GO_ON;
        if last {
            // A record that a ring has no room for from here on is behind the end, and not lost.
            feed.disable(end_ns != u64::MAX);
        }
        // Read before the messages: those that it promises are among them then.
        let heard_ns = heard_ns.load(Ordering::Acquire);
        let mut horizon = now_ns().min(heard_ns).saturating_sub(LATENESS_NS);
        if let Some(oldest_ns) = feed.oldest()
            && assembler.waiting() < MOST_WAITING
        {
            horizon = horizon.min(oldest_ns.saturating_sub(1));
        }
        feed.drain(|raw| {
            governor.iter_mut().for_each(|governor| governor.saw(&raw));
            assembler.push(raw);
        });
        if last {
            feed.untold(now_ns().min(end_ns)).into_iter().for_each(|raw| assembler.push(raw));
        }
        for message in messages.try_iter() {
            match message {
                Message::Raw(raw) => assembler.push(raw),
                Message::Counted { pid, minor, major } => assembler.counted(pid, minor, major),
            }
        }
        if last {
            let (overhead, gap) = governor.map(|governor| governor.end(&feed, end_ns)).unzip();
            gap.flatten().into_iter().for_each(|raw| assembler.push(raw));
            let (writer, summary) = assembler.finish(end_ns)?;
            let (grown_to, interface) = (feed.grown_to(), feed.interface());
            let events = feed.into_descriptors();
            return Ok(Collected { writer, summary, grown_to, overhead, interface, events });
        }
        let gap = governor.as_mut().and_then(|governor| governor.turn(&feed, now_ns()));
        gap.into_iter().for_each(|raw| assembler.push(raw));
        assembler.advance(horizon)?;
        feed.wait(POLL_MS);
    }
}
