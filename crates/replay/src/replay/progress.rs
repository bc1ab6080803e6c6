//! A progress bar on standard error, for replays that take longer than a second.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Events between two reads of the time.
const STEP: u64 = 512;

/// Hidden for the first second; never drawn when standard error is no terminal.
pub(super) struct Progress {
    bar: ProgressBar,
    since: Instant,
    pending: u64,
}

impl Progress {
    /// A bar for the trace `name`.
    pub(super) fn new(name: String) -> Self {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template("{prefix} {wide_bar} {pos}/{len} {eta} {msg:12}") {
            bar.set_style(style);
        }
        bar.set_prefix(name);
        Self { bar, since: Instant::now(), pending: 0 }
    }

    /// Sets the number of events.
    pub(super) fn expect(&self, events: u64) {
        self.bar.set_length(events);
    }

    /// Shows the current step.
    pub(super) fn show(&self, what: String) {
        self.bar.set_message(what);
    }

    /// Counts an event.
    #[inline]
    pub(super) fn advance(&mut self) {
        self.pending += 1;
        if self.pending == STEP {
            self.pending = 0;
            self.bar.inc(STEP);
            if self.bar.is_hidden() && self.since.elapsed() > Duration::from_secs(1) {
                self.bar.set_draw_target(ProgressDrawTarget::stderr());
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
