//! Records the faults of the calling thread, to learn what a recording adds to their times.

use std::collections::HashMap;

use super::RecordError;
use super::feed::Feed;
use super::options::Interface;
use super::perf::Followed;
use super::raw::RawKind;
use super::setup;

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
    feed: Feed,
}

impl OwnFaults {
    /// Opens what a recording has at faults, and leaves it disabled. BPF programs at calls and at forks are left
    /// out: the work has faults alone.
    ///
    /// # Errors
    /// Those of a recording that is not permitted, or that this kernel has no events for.
    pub(crate) fn of_this_thread() -> Result<Self, RecordError> {
        setup::raise_open_files()?;
        let mut feed = Feed::privileged(Interface::Auto, None, false)?;
        feed.only_faults();
        feed.follow(Followed::Thread(0))?;
        feed.pause();
        Ok(Self { feed })
    }

    /// Does the work, recorded; returns its result and the faults.
    ///
    /// # Errors
    /// The kernel refuses now what it did before.
    pub(crate) fn during<T>(&mut self, work: impl FnOnce() -> T) -> Result<(T, Vec<OwnFault>), RecordError> {
        self.feed.enable()?;
        let result = work();
        self.feed.pause();
        let mut begun = HashMap::new();
        let mut faults = Vec::new();
        self.feed.drain(|raw| match raw.kind {
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
        Ok((result, faults))
    }
}
