//! The ring of one CPU, and the events that write into it.
//!
//! The ring belongs to an event of the recorder that records nothing, so that all other events can be
//! redirected to a larger ring while the program runs.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use perf_event_open_sys::ioctls;

use super::RecordError;
use super::parse::Parser;
use super::perf::{self, Source};
use super::raw::{Raw, RawKind};
use super::ring::Ring;

/// A ring is too small if more than one part in this many is full when it is emptied.
const TOO_FULL: u64 = 2;

/// The next ring is this many times as large.
const GROWTH: usize = 4;

/// The largest ring of a CPU.
const LARGEST: usize = 256 << 20;

/// The records of one CPU.
pub(super) struct Sink {
    cpu: i32,
    kernel: bool,
    current: Held,
    /// The former ring: records may have been under way to it when its events were redirected.
    former: Option<Held>,
    events: Vec<(Source, OwnedFd)>,
    /// The last record that was read.
    last: (u64, u32, u32),
    /// Lost records that the kernel has reported.
    lost: u64,
    may_grow: bool,
}

/// A ring and the event that owns it.
struct Held {
    ring: Ring,
    bytes: usize,
    owner: OwnedFd,
}

impl Held {
    fn open(cpu: i32, kernel: bool, bytes: usize) -> Result<Held, RecordError> {
        let owner = perf::open_owner(cpu, kernel, bytes)?;
        let ring = Ring::map(&owner, bytes).map_err(|source| RecordError::Ring { bytes, source })?;
        Ok(Held { ring, bytes, owner })
    }
}

impl Sink {
    /// With `may_grow`, the ring is replaced by a larger one when it fills up.
    pub(super) fn open(cpu: i32, kernel: bool, bytes: usize, may_grow: bool) -> Result<Sink, RecordError> {
        let current = Held::open(cpu, kernel, bytes)?;
        Ok(Sink { cpu, kernel, current, former: None, events: vec![], last: (0, 0, 0), lost: 0, may_grow })
    }

    /// Makes this event write into the ring.
    pub(super) fn add(&mut self, source: Source, event: OwnedFd) -> Result<(), RecordError> {
        redirect(&event, &self.current.owner)?;
        self.events.push((source, event));
        Ok(())
    }

    /// Calls `each` with the waiting records, oldest first. A gap is placed after the record before it.
    pub(super) fn drain(&mut self, parser: &Parser, mut each: impl FnMut(Raw)) {
        let Sink { current, former, last, lost, .. } = self;
        let lost_before = *lost;
        let mut take = |record: &[u8]| {
            let Some(mut raw) = parser.record(record) else { return };
            if let RawKind::Lost { records } = raw.kind {
                *lost += records;
                raw.time_ns = if last.0 == 0 { raw.time_ns } else { last.0 };
            }
            *last = (raw.time_ns, raw.pid, raw.tid);
            each(raw);
        };
        if let Some(mut former) = former.take() {
            former.ring.drain(&mut take);
        }
        let drained = current.ring.drain(&mut take);
        if self.may_grow && (self.lost > lost_before || drained > self.current.bytes as u64 / TOO_FULL) {
            self.grow();
        }
    }

    /// Records that the kernel has lost and not reported, since no record followed.
    pub(super) fn untold(&mut self) -> Option<Raw> {
        let (time_ns, pid, tid) = self.last;
        let records = self
            .events
            .iter()
            .filter_map(|(_, event)| perf::lost(event))
            .sum::<u64>()
            .checked_sub(self.lost)?;
        self.lost += records;
        (records > 0).then_some(Raw { time_ns, pid, tid, kind: RawKind::Lost { records } })
    }

    pub(super) fn bytes(&self) -> usize {
        self.current.bytes
    }

    pub(super) fn cpu(&self) -> i32 {
        self.cpu
    }

    /// Enables the events that are of these sources.
    pub(super) fn enable(&self, of: impl Fn(Source) -> bool) {
        for (_, event) in self.events.iter().filter(|(source, _)| of(*source)) {
            // SAFETY: C3: the event is open, and the request takes no memory.
            unsafe { ioctls::ENABLE(event.as_raw_fd(), 0) };
        }
    }

    /// Disables the events that are of these sources.
    pub(super) fn disable(&self, of: impl Fn(Source) -> bool) {
        for (_, event) in self.events.iter().filter(|(source, _)| of(*source)) {
            // SAFETY: C3: the event is open, and the request takes no memory.
            unsafe { ioctls::DISABLE(event.as_raw_fd(), 0) };
        }
    }

    /// What the events of a source have counted together.
    pub(super) fn counted(&self, of: Source) -> u64 {
        let events = self.events.iter().filter(|(source, _)| *source == of);
        events.filter_map(|(_, event)| perf::value(event)).sum()
    }

    /// Takes the events, which write into the ring until they are dropped.
    pub(super) fn take_events(&mut self) -> Vec<(Source, OwnedFd)> {
        std::mem::take(&mut self.events)
    }

    fn grow(&mut self) {
        let bytes = self.current.bytes * GROWTH;
        let larger = (bytes <= LARGEST).then(|| Held::open(self.cpu, self.kernel, bytes));
        // If the kernel allows no larger ring, the recording goes on with this one.
        let Some(Ok(larger)) = larger else {
            self.may_grow = false;
            return;
        };
        let send_all = |owner| self.events.iter().try_for_each(|(_, event)| redirect(event, owner));
        if send_all(&larger.owner).is_err() {
            // Sending an event back cannot fail: it was there before.
            let _ = send_all(&self.current.owner);
            self.may_grow = false;
            return;
        }
        self.former = Some(std::mem::replace(&mut self.current, larger));
    }
}

impl AsFd for Sink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.current.owner.as_fd()
    }
}

fn redirect(event: &OwnedFd, owner: &OwnedFd) -> Result<(), RecordError> {
    // SAFETY: C3: both events are open, and the request takes no memory.
    match unsafe { ioctls::SET_OUTPUT(event.as_raw_fd(), owner.as_raw_fd()) } {
        0 => Ok(()),
        _ => Err(RecordError::System { what: "sharing a ring", source: io::Error::last_os_error() }),
    }
}
