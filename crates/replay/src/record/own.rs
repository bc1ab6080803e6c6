//! Records the faults of the calling thread, to learn what a recording adds to their times.

use std::collections::HashMap;

use super::RecordError;
use super::parse::Parser;
use super::perf::{self, Events, Followed};
use super::raw::RawKind;
use super::setup;
use super::tracefs::Tracefs;

/// Bits of the processor's error code: the entry forbade the access, and the access was a write.
const PROTECTION: u64 = 1;
const WRITE: u64 = 2;

/// A recorded fault of user mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnFault {
    pub(crate) write: bool,
    /// Whether a present entry forbade the access.
    pub(crate) protection: bool,
    /// Its recorded time.
    pub(crate) ns: u64,
}

/// A recorder of the thread that made it.
pub(crate) struct OwnFaults {
    events: Events,
    parser: Parser,
}

impl OwnFaults {
    /// Opens the same events as a recording, and leaves them disabled.
    ///
    /// # Errors
    /// Those of a recording that is not permitted, or that this kernel has no events for.
    pub(crate) fn of_this_thread() -> Result<Self, RecordError> {
        let tracefs = Tracefs::find()?;
        let mut wanted = perf::common();
        let (fields, _) = setup::tracepoints(&tracefs, &mut wanted)?;
        setup::raise_open_files()?;
        let mut events = perf::rings(true, None, setup::PRIVILEGED_RING)?;
        events.follow(&wanted, Followed::Thread(0), true)?;
        let parser = Parser::new(events.sources.clone(), Some(fields));
        Ok(Self { events, parser })
    }

    /// Does the work, recorded; returns its result and the faults.
    pub(crate) fn during<T>(&mut self, work: impl FnOnce() -> T) -> (T, Vec<OwnFault>) {
        self.events.sinks.iter().for_each(|sink| sink.enable(|_| true));
        let result = work();
        self.events.sinks.iter().for_each(|sink| sink.disable(|_| true));
        let mut begun = HashMap::new();
        let mut faults = Vec::new();
        for sink in &mut self.events.sinks {
            sink.drain(&self.parser, |raw| match raw.kind {
                RawKind::Fault { addr, error_code, kernel_mode: false } => {
                    begun.insert(addr, (raw.time_ns, error_code));
                }
                RawKind::Resolved { addr, .. } => {
                    if let Some((begin_ns, code)) = begun.remove(&addr) {
                        let (write, protection) = (code & WRITE != 0, code & PROTECTION != 0);
                        faults.push(OwnFault { write, protection, ns: raw.time_ns.saturating_sub(begin_ns) });
                    }
                }
                _ => {}
            });
        }
        (result, faults)
    }
}
