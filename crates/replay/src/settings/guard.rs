//! The right to change settings of the kernel.
//!
//! The guard puts them back when it is dropped (a panic included) and on SIGINT, SIGTERM and SIGHUP. After a
//! kill, the next start of the command does: before each change, the values found and the values set are
//! written to the journal, so that a value that the user has set since then stays. A lock file keeps two
//! processes from changing settings at the same time.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use nix::sys::signal::{SigSet, Signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use super::Places;
use super::journal::{Journal, put};
use crate::host::thp::{selected, sizes};
use crate::output::{quoted, say};
use crate::record::is_left_ignored;

/// The journal of values to put back. The guard and the signal thread both take it; the first one puts them back.
static CHANGED: Mutex<Option<Journal>> = Mutex::new(None);

fn changed() -> MutexGuard<'static, Option<Journal>> {
    CHANGED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a setting cannot be changed, in words that name the cure where there is one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SettingsError(pub String);

/// The right to change settings of the kernel; dropping it puts them back.
#[derive(Debug)]
pub struct Settings {
    places: Places,
    // Held for its lock, which ends when this process and all that it forked have closed it.
    _lock: File,
}

impl Settings {
    /// Waits for any other process that changes settings, puts back what a killed one left, and notes the
    /// values found.
    ///
    /// # Errors
    /// [`SettingsError`] where this user may not change them.
    pub fn acquire(places: &Places) -> Result<Self, SettingsError> {
        Self::may_change(places)?;
        let lock = lock(&places.lock(), Held::Wait).map_err(|error| needs_root(&error))?;
        recover(places)?;
        let journal = Journal::found(sizes(&places.settings).values(), &places.min_free, places.journal());
        put_back_on_signals();
        Self::begin(places, lock, journal)
    }

    /// Fails where this user may not change settings.
    ///
    /// # Errors
    /// [`SettingsError`], which asks for root.
    pub fn may_change(places: &Places) -> Result<(), SettingsError> {
        let Some(first) = sizes(&places.settings).into_values().next() else { return Ok(()) };
        OpenOptions::new().write(true).open(first).map(drop).map_err(|error| needs_root(&error))
    }

    /// The same as [`Settings::acquire`] for a recording, which notes no setting before it changes one. It reads its
    /// signals itself, and ends by them: no thread puts back on a signal. Never waits for another process.
    ///
    /// # Errors
    /// Also where another process changes settings.
    pub(super) fn acquire_beside_a_recording(places: &Places) -> Result<Self, SettingsError> {
        let lock = lock(&places.lock(), Held::Refuse).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                SettingsError("another run has changed settings of the kernel".to_owned())
            }
            _ => SettingsError(format!("cannot change settings of the kernel: {error}")),
        })?;
        recover(places)?;
        // Nothing changes along with what a recording sets.
        let journal = Journal::found(std::iter::empty(), Path::new(""), places.journal());
        Self::begin(places, lock, journal)
    }

    /// The journal is written before the first change. From here on the signal thread, where there is one, puts back.
    fn begin(places: &Places, lock: File, mut journal: Journal) -> Result<Self, SettingsError> {
        let mut changed = changed();
        journal.save().map_err(|error| needs_root(&format!("{error:#}")))?;
        *changed = Some(journal);
        Ok(Self { places: places.clone(), _lock: lock })
    }

    /// The paths of the settings.
    pub(super) const fn places(&self) -> &Places {
        &self.places
    }

    /// Sets a setting of the kernel, to be put back with the others. Returns the value it has then, since the
    /// kernel may grant only a part.
    ///
    /// # Errors
    /// [`SettingsError`] when there is no such setting or the kernel refuses the value.
    pub fn set(&self, path: &Path, value: &str) -> Result<String, SettingsError> {
        self.change(&[(path, value)])?;
        selected(path).ok_or_else(|| cannot_set(path, &"it cannot be read back"))
    }

    /// Notes that this program repeatedly sets a setting to these values, so that the next process recognises
    /// them if this one is killed.
    ///
    /// # Errors
    /// [`SettingsError`] when there is no such setting, or that cannot be noted.
    pub fn expect(&self, path: &Path, values: &[&str]) -> Result<(), SettingsError> {
        noted(&mut changed(), path)?
            .expect(&[(path, values)], false)
            .map_err(|error| cannot_set(path, &error))
    }

    /// The value that a setting had before the first change here.
    pub fn before(&self, path: &Path) -> Option<String> {
        changed().as_ref().and_then(|journal| journal.before(path).map(str::to_owned))
    }

    /// Makes changes, after noting them for the next start in case this process is killed.
    pub(super) fn change(&self, changes: &[(&Path, &str)]) -> Result<(), SettingsError> {
        let Some((first, _)) = changes.first() else { return Ok(()) };
        // Held so that the signal thread cannot put back in the middle.
        let mut changed = changed();
        let journal = noted(&mut changed, first)?;
        let values: Vec<[&str; 1]> = changes.iter().map(|(_, value)| [*value]).collect();
        let expected: Vec<(&Path, &[&str])> =
            changes.iter().zip(&values).map(|((path, _), value)| (*path, value.as_slice())).collect();
        journal.expect(&expected, true).map_err(|error| cannot_set(first, &error))?;
        for (path, value) in changes {
            put(path, value).map_err(|error| cannot_set(path, &error))?;
        }
        journal.settle(changes.iter().map(|(path, _)| *path)).map_err(|error| cannot_set(first, &error))
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        if let Some(journal) = changed().take() {
            journal.put_back();
        }
    }
}

fn needs_root(error: &dyn std::fmt::Display) -> SettingsError {
    SettingsError(format!("cannot change settings of the kernel ({error}): run as root"))
}

fn noted<'a>(changed: &'a mut Option<Journal>, path: &Path) -> Result<&'a mut Journal, SettingsError> {
    changed.as_mut().ok_or_else(|| cannot_set(path, &"the settings were put back"))
}

fn cannot_set(path: &Path, error: &dyn std::fmt::Display) -> SettingsError {
    SettingsError(format!("cannot set {}: {error}", quoted(path)))
}

/// Puts back what a killed process has left.
fn recover(places: &Places) -> Result<(), SettingsError> {
    let recovered = Journal::recover(&places.journal());
    recovered.told.iter().for_each(|told| say(format_args!("quire: {told}")));
    if recovered.left {
        // What is found now is not what was there before the killed run.
        return Err(SettingsError(format!(
            "a run that was killed has changed settings that cannot be put back: set them by hand, or remove {}",
            quoted(&places.journal())
        )));
    }
    Ok(())
}

/// What becomes of a lock that another process holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Held {
    /// It is waited for.
    Wait,
    /// It is an error.
    Refuse,
}

/// Opens and locks the lock file, and writes the number of this process into it. No other user may open it: a
/// user that can could lock it, and keep all runs waiting.
fn lock(path: &Path, held: Held) -> io::Result<File> {
    let mut file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) if held == Held::Refuse => return Err(io::ErrorKind::WouldBlock.into()),
        Err(TryLockError::WouldBlock) => {
            say("quire: waiting for another run that has changed settings of the kernel");
            file.lock()?;
        }
        Err(TryLockError::Error(error)) => return Err(error),
    }
    file.set_len(0)?;
    file.write_all(std::process::id().to_string().as_bytes())?;
    Ok(file)
}

/// Starts, once, the thread that puts settings back on a signal and then lets the signal take its default
/// action.
fn put_back_on_signals() {
    static STARTED: OnceLock<()> = OnceLock::new();
    STARTED.get_or_init(|| {
        let hangup = (!is_left_ignored(Signal::SIGHUP)).then_some(SIGHUP);
        let mut signals = match Signals::new([SIGINT, SIGTERM].into_iter().chain(hangup)) {
            Ok(signals) => signals,
            Err(error) => {
                return say(format_args!(
                    "quire: cannot catch signals ({error}); the next start puts settings back"
                ));
            }
        };
        std::thread::spawn(move || {
            // A recorder waits for the ends of children by their signal: this thread, which blocks nothing else, would take it.
            let mut of_children = SigSet::empty();
            of_children.add(Signal::SIGCHLD);
            let _ = of_children.thread_block();
            for signal in signals.forever() {
                // Kept locked: nothing may be changed again before the process ends.
                let mut changed = changed();
                if let Some(journal) = changed.take() {
                    journal.put_back();
                }
                let _ = emulate_default_handler(signal);
            }
        });
    });
}
