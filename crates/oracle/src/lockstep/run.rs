//! Runs from seeds: draws and steps them; shortens a failing list and prints it as source.

use std::fmt;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::shrink;
use crate::ops::{Step, source};

/// Time for shortening a failing list.
const SHRINK_BUDGET: Duration = Duration::from_secs(15);

/// Time after which a run, with its shortening, counts as never ending.
const HANG: Duration = Duration::from_secs(120);

/// A failing run, shortened.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed it was drawn from.
    pub seed: u64,
    /// The failure of the whole list.
    pub what: String,
    /// The failure of the shortened list.
    pub shortened_what: String,
    /// The shortened list.
    pub steps: Vec<Step>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "QUIRE_SEED={} fails: {}", self.seed, self.what)?;
        writeln!(
            f,
            "shortened to {} operations, which fail with: {}",
            self.steps.len(),
            self.shortened_what
        )?;
        f.write_str(&source(&self.steps))
    }
}

/// Runs a list, where a panic of the subject (an assertion, a violation that its machine saw) is a failure too.
///
/// # Errors
/// The failure.
pub fn check_steps<T>(steps: &[T], run: &dyn Fn(&[T]) -> Result<(), String>) -> Result<(), String> {
    match catch_unwind(AssertUnwindSafe(|| run(steps))) {
        Ok(result) => result,
        Err(panic) => Err(panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_string()))
            .unwrap_or_else(|| "panic".to_string())),
    }
}

/// Runs a list of any operations; a failing one is shortened.
///
/// # Errors
/// The failure of the shortened list, and the list.
pub fn check_list<T: Clone>(
    steps: &[T],
    run: &dyn Fn(&[T]) -> Result<(), String>,
) -> Result<(), (String, Vec<T>)> {
    let Err(what) = check_steps(steps, run) else { return Ok(()) };
    let steps = shrink(steps, SHRINK_BUDGET, |attempt| check_steps(attempt, run).is_err());
    Err((check_steps(&steps, run).err().unwrap_or(what), steps))
}

/// Runs a list drawn from `seed`; a failing one is shortened.
///
/// # Errors
/// The [`Report`].
pub fn check_seed(
    seed: u64,
    steps: &[Step],
    run: &dyn Fn(&[Step]) -> Result<(), String>,
) -> Result<(), Box<Report>> {
    let Err(what) = check_steps(steps, run) else { return Ok(()) };
    let (shortened_what, steps) =
        check_list(steps, run).err().unwrap_or_else(|| ("nothing, this time".to_string(), steps.to_vec()));
    Err(Box::new(Report { seed, what, shortened_what, steps }))
}

/// Runs an action that must end soon. If it does not, the process ends and prints `label`, since an endless
/// search can be stopped in no other way.
pub fn in_time<R>(label: &str, action: impl FnOnce() -> R) -> R {
    within(HANG, label, action)
}

/// The same with another limit.
pub fn within<R>(limit: Duration, label: &str, action: impl FnOnce() -> R) -> R {
    let (done, waits) = mpsc::channel::<()>();
    let words = label.to_string();
    let guard = std::thread::spawn(move || {
        if waits.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
            // Not by `eprintln!`, whose output a test harness keeps to itself until the test ends.
            let _ = writeln!(std::io::stderr(), "{words}: not done after {limit:?}");
            std::process::abort();
        }
    });
    let result = catch_unwind(AssertUnwindSafe(action));
    drop(done);
    let _ = guard.join();
    result.unwrap_or_else(|panic| {
        eprintln!("{label}: panicked");
        std::panic::resume_unwind(panic)
    })
}

/// Whether `QUIRE_LONG=1` asks for long runs.
pub fn long() -> bool {
    std::env::var("QUIRE_LONG").is_ok_and(|value| value != "0")
}

/// The time that a test may take: half of `time`, or sixty times as long in long runs.
pub fn budget(time: Duration) -> Duration {
    if long() { time * 30 } else { time / 2 }
}

/// Fixed seeds at the start of every run, as far as its time goes; the first [`SURE`] in any case.
const SAME: u64 = 30;
const SURE: u64 = 8;

/// The seed that `QUIRE_SEED` asks for. One seed meets less than many do.
pub fn given_seed() -> Option<u64> {
    std::env::var("QUIRE_SEED").ok().and_then(|text| text.parse().ok())
}

/// The seeds of a test: `QUIRE_SEED` alone if it is set, else the same ones each time, so that a change is
/// judged by its own effect. Long runs continue with new ones for as long as `time` allows.
pub fn seeds(time: Duration) -> impl Iterator<Item = u64> {
    let (start, limit, given) = (Instant::now(), budget(time), given_seed());
    let mut next = 0;
    std::iter::from_fn(move || {
        next += 1;
        match given {
            Some(seed) => (next == 1).then_some(seed),
            None if next <= SURE || next <= SAME && start.elapsed() < limit => Some(next),
            None => (long() && start.elapsed() < limit).then(|| fastrand::u64(..)),
        }
    })
}
