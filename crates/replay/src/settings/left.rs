//! Puts back what a killed run left.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

use procfs::process::Process;

use super::journal::Journal;
use super::{Places, SettingsError};
use crate::output::quoted;

/// How long a start waits for the processes that a killed run has forked. They end with it, but each closes
/// what it has open first, and perf events take the kernel 0.1 s or more.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a start of the command finds.
#[derive(Debug, PartialEq, Eq)]
pub enum Left {
    /// No settings to put back.
    Nothing,
    /// Another run has changed settings and will put them back itself.
    InUse,
    /// These lines tell what was put back.
    PutBack(Vec<String>),
}

/// Puts back what a killed run left. Without one, this costs one look for the journal.
///
/// # Errors
/// [`SettingsError`] where this user may not, or the kernel refuses a value.
pub fn put_back_left(places: &Places) -> Result<Left, SettingsError> {
    let journal = places.journal();
    let cannot = |error: &dyn std::fmt::Display| {
        SettingsError(format!(
            "a run has changed settings of the kernel, noted in {} ({error}): if it was killed, run `quire restore` as root",
            quoted(&journal)
        ))
    };
    // Looked at first: a lock that is held, if only for a moment, tells others that a run will put the settings back.
    match OpenOptions::new().append(true).open(&journal) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Left::Nothing),
        opened => opened.map_err(|error| cannot(&error))?,
    };
    let lock = File::open(places.lock()).map_err(|error| cannot(&error))?;
    let since = Instant::now();
    loop {
        match lock.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) if has_ended(&places.lock()) && since.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(TryLockError::WouldBlock) => return Ok(Left::InUse),
            Err(TryLockError::Error(error)) => return Err(cannot(&error)),
        }
    }
    // The run may have ended, and put its settings back, since the first look.
    if !journal.exists() {
        return Ok(Left::Nothing);
    }
    let recovered = Journal::recover(&journal);
    if recovered.failed {
        recovered.told.iter().for_each(|told| crate::output::say(format_args!("quire: {told}")));
        return Err(SettingsError("not all settings of the kernel could be put back".to_owned()));
    }
    Ok(if recovered.told.is_empty() { Left::Nothing } else { Left::PutBack(recovered.told) })
}

/// Whether the process that took the lock ends or has ended: it closes what it has open by and by, and those that
/// it forked hold the lock until they have done so, too.
fn has_ended(lock: &Path) -> bool {
    /// `PF_EXITING` of the kernel. The first thread ends only with the process here.
    const EXITING: u32 = 4;
    let Some(holder) = fs::read_to_string(lock).ok().and_then(|number| number.parse().ok()) else {
        return false;
    };
    let stat = Process::new(holder).and_then(|process| process.stat());
    stat.map_or(true, |stat| stat.state == 'Z' || stat.flags & EXITING != 0)
}
