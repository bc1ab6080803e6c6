//! The records of a recording: those of perf's events and, where the kernel takes BPF programs, theirs for
//! faults and calls.

use std::os::fd::OwnedFd;

use super::RecordError;
use super::bpf::Bpf;
use super::options::Interface;
use super::parse::{Fields, Parser};
use super::perf::{self, Events, Followed, Source, Wanted};
use super::raw::{Raw, RawKind};
use super::sink::Sink;
use super::tracefs::Tracefs;
use super::tracepoints::{self, PRIVILEGED_RING, USER_RING};

/// Beside programs, perf's rings get little, and are this part of the others.
const BESIDE: usize = 8;

/// The smallest ring.
const PAGE: usize = 4096;

/// What tells the events of a recording. Nothing is followed at first.
pub(super) struct Feed {
    events: Events,
    /// The events to open for what is followed.
    wanted: Vec<Wanted>,
    fields: Option<Fields>,
    parser: Parser,
    /// Whether events were opened that the parser does not know yet.
    has_new_events: bool,
    bpf: Option<Bpf>,
    /// Whether perf may report what kernel code does.
    kernel: bool,
    /// Whether this kernel reports pages that it maps around a fault.
    pub(super) fault_around: bool,
}

impl Feed {
    /// Of the privileged tier. With `counts`, the time of the program is counted, and faults that are not
    /// recorded.
    pub(super) fn privileged(
        interface: Interface,
        ring_bytes: Option<usize>,
        counts: bool,
    ) -> Result<Feed, RecordError> {
        let bpf = || Bpf::open(ring_bytes, PRIVILEGED_RING, tracepoints::nameless_device());
        let bpf = match interface {
            Interface::Perf => None,
            Interface::Bpf => Some(bpf().map_err(RecordError::of_programs)?),
            // Perf needs less of the kernel, and says what it lacks.
            Interface::Auto => bpf().ok(),
        };
        let mut wanted = Vec::new();
        let (mut fields, mut fault_around) = (None, true);
        if bpf.is_some() {
            wanted.push(perf::records());
            wanted.extend(counts.then(perf::counted_time));
        } else {
            wanted.extend(perf::common());
            let (found, around) = tracepoints::all(&Tracefs::find()?, &mut wanted)?;
            (fields, fault_around) = (Some(found), around);
            if counts {
                wanted.extend([perf::counted_time(), perf::counted_faults()]);
            }
        }
        let part = if bpf.is_some() { BESIDE } else { 1 };
        let ring_bytes = ring_bytes.map(|bytes| (bytes / part).max(PAGE));
        let events = perf::rings(true, ring_bytes, PRIVILEGED_RING / part)?;
        let parser = Parser::new(events.sources.clone(), fields);
        let has_new_events = false;
        Ok(Feed { events, wanted, fields, parser, has_new_events, bpf, kernel: true, fault_around })
    }

    /// Of the user tier.
    pub(super) fn user(ring_bytes: Option<usize>) -> Result<Feed, RecordError> {
        let events = perf::rings(false, ring_bytes, USER_RING)?;
        let parser = Parser::new(events.sources.clone(), None);
        let (wanted, fields, bpf) = (perf::common(), None, None);
        let (has_new_events, kernel, fault_around) = (false, false, false);
        Ok(Feed { events, wanted, fields, parser, has_new_events, bpf, kernel, fault_around })
    }

    /// Only programs that run inside of faults are attached from here on, once they are enabled.
    pub(super) fn only_faults(&mut self) {
        self.bpf.iter_mut().for_each(Bpf::only_faults);
    }

    /// What tells faults and calls in the privileged tier.
    pub(super) fn interface(&self) -> Option<Interface> {
        let used = if self.bpf.is_some() { Interface::Bpf } else { Interface::Perf };
        self.kernel.then_some(used)
    }

    /// Follows this.
    pub(super) fn follow(&mut self, followed: Followed<'_>) -> Result<(), RecordError> {
        self.events.follow(&self.wanted, followed, self.kernel)?;
        self.has_new_events = true;
        let Some(bpf) = &mut self.bpf else { return Ok(()) };
        bpf.attach()?;
        match followed {
            Followed::Thread(0) => bpf.follow(own_tid()),
            Followed::Program(tid) | Followed::Thread(tid) => bpf.follow(tid.cast_unsigned()),
            // Perf alone follows these.
            Followed::Cgroup(_) | Followed::Every => Ok(()),
        }
    }

    /// Follows the calling thread no more. Its events are the result, so that they can be held a while.
    pub(super) fn forget_own(&mut self) -> Vec<OwnedFd> {
        self.bpf.iter().for_each(|bpf| bpf.forget(own_tid()));
        self.events.sources.clear();
        self.events.sinks.iter_mut().flat_map(Sink::take_events).map(|(_, event)| event).collect()
    }

    /// From here on records come.
    pub(super) fn enable(&mut self) -> Result<(), RecordError> {
        self.events.sinks.iter().for_each(|sink| sink.enable(|_| true));
        self.bpf.as_mut().map_or(Ok(()), Bpf::attach)
    }

    /// From here on no record comes. With `wait`, none is under way either: then followed threads may still
    /// run.
    pub(super) fn disable(&self, wait: bool) {
        self.events.sinks.iter().for_each(|sink| sink.disable(|_| true));
        self.bpf.iter().for_each(|bpf| bpf.disable(wait));
    }

    /// As [`Feed::disable`]; what the threads do costs no more than without a recording.
    pub(super) fn pause(&mut self) {
        self.disable(false);
        self.bpf.iter_mut().for_each(Bpf::detach);
    }

    /// Whether faults have records.
    pub(super) fn set_faults(&self, on: bool) {
        for sink in &self.events.sinks {
            if on { sink.enable(Source::is_fault) } else { sink.disable(Source::is_fault) }
        }
        self.bpf.iter().for_each(|bpf| bpf.set_faults(on));
    }

    /// Faults, those without records among them; the difference between two calls while faults have none
    /// counts.
    pub(super) fn faults(&self) -> u64 {
        self.bpf.as_ref().map_or_else(|| self.counted(Source::Faults), Bpf::missed)
    }

    /// Nanoseconds that what is followed ran on CPUs.
    pub(super) fn time_ns(&self) -> u64 {
        self.counted(Source::Time)
    }

    fn counted(&self, source: Source) -> u64 {
        self.events.sinks.iter().map(|sink| sink.counted(source)).sum()
    }

    /// The begin of the oldest call or fault whose record comes only at its end. Call this before
    /// [`Feed::drain`].
    pub(super) fn oldest(&self) -> Option<u64> {
        self.bpf.as_ref().and_then(Bpf::oldest)
    }

    /// Calls `each` with the waiting records.
    pub(super) fn drain(&mut self, mut each: impl FnMut(Raw)) {
        if std::mem::take(&mut self.has_new_events) {
            self.parser = Parser::new(self.events.sources.clone(), self.fields);
        }
        for sink in &mut self.events.sinks {
            sink.drain(&self.parser, &mut each);
        }
        self.bpf.iter_mut().for_each(|bpf| bpf.drain(&mut each));
    }

    /// Records that perf has lost and not reported, since none followed, and those of programs that the
    /// kernel skipped. Called once, at the end.
    pub(super) fn untold(&mut self, now_ns: u64) -> Vec<Raw> {
        let mut untold: Vec<Raw> = self.events.sinks.iter_mut().filter_map(Sink::untold).collect();
        let records = self.bpf.as_ref().map_or(0, Bpf::skipped);
        if records > 0 {
            untold.push(Raw { time_ns: now_ns, pid: 0, tid: 0, kind: RawKind::Lost { records } });
        }
        untold
    }

    /// Size of each ring at the start: of those that get faults and calls.
    pub(super) fn ring_bytes(&self) -> usize {
        self.bpf.as_ref().map_or(self.events.ring_bytes, Bpf::ring_bytes)
    }

    /// Size of the largest ring, if those of the start became too small.
    pub(super) fn grown_to(&self) -> Option<usize> {
        let largest = match &self.bpf {
            Some(bpf) => bpf.largest_ring(),
            None => self.events.sinks.iter().map(Sink::bytes).max().unwrap_or_default(),
        };
        (largest > self.ring_bytes()).then_some(largest)
    }

    /// Waits until a ring is well filled, or for at most the timeout.
    pub(super) fn wait(&self, timeout_ms: u8) {
        let is_busy = self.bpf.as_ref().is_some_and(Bpf::is_busy);
        perf::wait(&self.events.sinks, if is_busy { 1 } else { timeout_ms });
    }

    /// What is open still, without the rings.
    pub(super) fn into_descriptors(self) -> Vec<OwnedFd> {
        let mut open = self.events.into_descriptors();
        open.extend(self.bpf.into_iter().flat_map(Bpf::into_links));
        open
    }
}

fn own_tid() -> u32 {
    nix::unistd::gettid().as_raw().cast_unsigned()
}
