//! Records which memory processes access, by DAMON: a thread of the kernel looks at the accessed bits of sampled pages.
//!
//! ```text
//! kdamond   that thread: what it watches, and how often it looks, by its files in sysfs
//! reports   what it reports: a tracepoint for each region at the end of each interval
//! targets   the processes that it watches
//! ```

mod kdamond;
mod reports;
mod targets;
#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use kdamond::Kdamond;
use reports::{Interval, Reports};
use targets::Targets;

use super::collect::Message;
use super::raw::{Raw, RawKind};
use super::tracefs::Tracefs;
use crate::output::say;
use crate::settings::Places;
use crate::trace::Accesses;

/// Between two looks at the processes, and at what the kernel has reported.
const LOOK: Duration = Duration::from_millis(100);

/// The thread is started in vain so many times in a row before the recording goes on without it.
const ATTEMPTS: u32 = 20;

/// Writes a file.
type Put = fn(&Path, &str) -> io::Result<()>;

/// DAMON, ready to watch processes.
pub(super) struct Damon {
    kdamond: Kdamond<Put>,
    tracepoint: reports::Tracepoint,
}

/// A recording of accesses in progress.
pub(super) struct Running<'s> {
    going_on: Sender<()>,
    thread: ScopedJoinHandle<'s, ()>,
}

impl Damon {
    /// Makes a thread of DAMON.
    ///
    /// # Errors
    /// In words, why this kernel or this user cannot.
    pub(super) fn claim(places: &Places) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("DAMON needs root".to_owned());
        }
        let tracefs = Tracefs::find().map_err(|error| error.to_string())?;
        let tracepoint = reports::Tracepoint::find(&tracefs).map_err(|error| error.to_string())?;
        let put: Put = kdamond::put;
        Ok(Self { kdamond: Kdamond::claim(places, put)?, tracepoint })
    }

    /// Watches the processes that live at a time, and sends what they access.
    pub(super) fn start<'s>(
        self,
        scope: &'s Scope<'s, '_>,
        living: impl Fn() -> Vec<i32> + Send + 's,
        messages: Sender<Message>,
    ) -> Running<'s> {
        let (going_on, end) = mpsc::channel();
        Running { going_on, thread: scope.spawn(move || watch(self, living, &messages, &end)) }
    }
}

impl Running<'_> {
    /// Ends the thread of DAMON, and puts its number back.
    pub(super) fn end(self) {
        drop(self.going_on);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }
}

/// Watches until the other end of the channel is gone.
fn watch(damon: Damon, living: impl Fn() -> Vec<i32>, messages: &Sender<Message>, end: &Receiver<()>) {
    let Damon { kdamond, tracepoint } = damon;
    let mut targets = Targets::default();
    let mut reports: Option<Reports> = None;
    let mut in_vain = 0;
    loop {
        let is_over = end.recv_timeout(LOOK) != Err(RecvTimeoutError::Timeout);
        if let Some(reports) = &mut reports {
            reports.take(|interval, cost_ns| send(messages, &targets, interval, cost_ns));
        }
        if is_over {
            return kdamond.stop();
        }
        let wanted = targets.look(&living(), Instant::now(), targets::resident);
        if !targets.is_change_due(&wanted, kdamond.is_on(), Instant::now()) {
            continue;
        }
        reports = None;
        kdamond.stop();
        let started = kdamond.start(&wanted).and_then(|thread| Reports::open(&tracepoint, thread));
        match started {
            Ok(opened) => {
                reports = Some(opened);
                targets.watched(wanted, Instant::now());
                in_vain = 0;
            }
            // A process may have ended since it was looked at.
            Err(_) if in_vain < ATTEMPTS => in_vain += 1,
            Err(why) => {
                kdamond.stop();
                return say(format_args!("quire: accesses are not recorded any more: {why}"));
            }
        }
    }
}

fn send(messages: &Sender<Message>, targets: &Targets, interval: Interval, cost_ns: Option<u64>) {
    let Interval { time_ns, target, regions } = interval;
    let Some(pid) = targets.pid(target) else { return };
    let (sample_ns, samples) = (kdamond::SAMPLE.as_nanos() as u64, kdamond::SAMPLES);
    let kind = RawKind::Accesses(Box::new(Accesses { sample_ns, samples, cost_ns, regions }));
    // The collector may have failed already; its error is reported when it is joined.
    let _ = messages.send(Message::Raw(Raw { time_ns, pid: pid as u32, tid: pid as u32, kind }));
}

/// The first line of a file of `/proc`.
fn line(path: impl AsRef<Path>) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.lines().next()?.to_owned())
}
