//! The ring of one CPU, and the events that write into it.
//!
//! The ring belongs to an event of the recorder's own that records nothing, so that all others can be sent to a larger
//! one while the program runs.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use perf_event_open_sys::ioctls;

use super::RecordError;
use super::parse::Parser;
use super::perf;
use super::raw::{Raw, RawKind};
use super::ring::Ring;

/// A ring that is full of so much of its size when it is emptied is too small.
const TOO_FULL: u64 = 2;

/// How much larger the next one is.
const GROWTH: usize = 4;

/// Not more kernel memory than this for a CPU.
const LARGEST: usize = 256 << 20;

/// The records of one CPU.
pub(super) struct Sink {
    cpu: i32,
    kernel: bool,
    current: Held,
    /// The ring before: a record may have been on its way into it when its events were sent to the next.
    former: Option<Held>,
    events: Vec<OwnedFd>,
    /// The last record that was read.
    last: (u64, u32, u32),
    /// Lost records that were told.
    lost: u64,
    may_grow: bool,
}

/// A ring and the event that it belongs to.
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

    /// From here on this event writes into the ring.
    pub(super) fn add(&mut self, event: OwnedFd) -> Result<(), RecordError> {
        redirect(&event, &self.current.owner)?;
        self.events.push(event);
        Ok(())
    }

    /// Hands on what is there, oldest first. A gap stands where it began: behind the record before it.
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

    /// What the kernel has lost and did not tell, since no record came behind it.
    pub(super) fn untold(&mut self) -> Option<Raw> {
        let (time_ns, pid, tid) = self.last;
        let records = self.events.iter().filter_map(perf::lost).sum::<u64>().checked_sub(self.lost)?;
        self.lost += records;
        (records > 0).then_some(Raw { time_ns, pid, tid, kind: RawKind::Lost { records } })
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    pub(super) fn bytes(&self) -> usize {
        self.current.bytes
    }

    /// No event tells anything any more.
    pub(super) fn disable(&self) {
        for event in &self.events {
            // SAFETY: C3: the event is open, and the request takes no memory.
            unsafe { ioctls::DISABLE(event.as_raw_fd(), 0) };
        }
    }

    fn grow(&mut self) {
        let bytes = self.current.bytes * GROWTH;
        let larger = (bytes <= LARGEST).then(|| Held::open(self.cpu, self.kernel, bytes));
        // Where the kernel gives no more, the recording goes on with what it has.
        let Some(Ok(larger)) = larger else {
            self.may_grow = false;
            return;
        };
        let send_all = |owner| self.events.iter().try_for_each(|event| redirect(event, owner));
        if send_all(&larger.owner).is_err() {
            // Those that are sent back have nothing against it: they come from there.
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
