//! A progress bar on standard error, for work that takes longer than a second.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Hidden for the first second; never drawn when standard error is no terminal.
pub struct Progress {
    bar: ProgressBar,
    since: Instant,
}

impl Progress {
    /// A bar for `steps` steps of the work `name`.
    pub fn new(name: &'static str, steps: usize) -> Self {
        let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template("{prefix} {wide_bar} {pos}/{len} {eta} {msg:32}") {
            bar.set_style(style);
        }
        bar.set_prefix(name);
        Self { bar, since: Instant::now() }
    }

    /// Shows the running part, and what of it.
    pub fn show(&mut self, part: &str, what: &str) {
        if self.bar.is_hidden() && self.since.elapsed() > Duration::from_secs(1) {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.set_message(format!("{part} {what}"));
    }

    /// One step is done.
    pub fn advance(&self) {
        self.bar.inc(1);
    }

    /// Removes the bar, as dropping it does.
    pub fn finish(self) {}
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
