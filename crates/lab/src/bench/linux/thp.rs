//! The folio-size settings of the kernel under `/sys/kernel/mm/transparent_hugepage`: forced while an arm
//! needs one size, and restored afterwards.
//!
//! The guard restores them when it is dropped (a panic included) and on SIGINT, SIGTERM and SIGHUP. After a
//! kill, the next process that takes the guard restores them: before each change, the values found and the
//! values set are written to a file, so that a value that the user has set since then stays. A lock file
//! keeps two processes from changing them at the same time.
//!
//! A size is set to `madvise` and requested by `MADV_HUGEPAGE`, not set to `always`, so that other processes
//! keep their folios.

mod note;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::bench::experiment::Skip;
use crate::host::thp::{root, selected, sizes};
use crate::output::{quoted, say};
use note::Note;

/// The paths of the settings and of this program's note: a parameter, so that tests can use a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// The directory of the settings.
    pub settings: PathBuf,
    /// A file beside them whose value the kernel changes along (`vm.min_free_kbytes`).
    pub min_free: PathBuf,
    /// The directory of the note and of the lock file; emptied by a restart of the machine, as the settings are.
    pub state: PathBuf,
}

impl Places {
    /// The paths of the running kernel.
    pub fn of_this_machine() -> Self {
        Self { settings: root(), min_free: "/proc/sys/vm/min_free_kbytes".into(), state: "/run".into() }
    }

    /// The file that holds the values to put back; it exists only while they are changed.
    pub fn note(&self) -> PathBuf {
        self.state.join("quire-bench-thp.json")
    }

    fn lock(&self) -> PathBuf {
        self.state.join("quire-bench-thp.lock")
    }
}

/// The note of values to restore. The guard and the signal thread both take it; the first one restores.
static CHANGED: Mutex<Option<Note>> = Mutex::new(None);

fn changed() -> MutexGuard<'static, Option<Note>> {
    CHANGED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to change the folio-size settings; dropping it puts them back.
#[derive(Debug)]
pub struct ThpSettings {
    sizes: BTreeMap<usize, PathBuf>,
    // Held for its lock, which also ends with the process.
    _lock: File,
}

impl ThpSettings {
    /// Waits for any other process that changes the settings, puts back what a killed one left, and notes the
    /// values found.
    ///
    /// # Errors
    /// [`Skip`] where the kernel has no such settings or this user may not write them.
    pub fn acquire(places: &Places) -> Result<Self, Skip> {
        let sizes = sizes(&places.settings);
        let Some(first) = sizes.values().next() else {
            return Err(Skip(format!(
                "{} has no per-size settings: needs Linux 6.8 or later with transparent huge pages",
                quoted(&places.settings)
            )));
        };
        if let Err(error) = OpenOptions::new().write(true).open(first) {
            return Err(Skip::because(
                &format!("cannot choose the folio size in {} (run as root)", quoted(&places.settings)),
                error,
            ));
        }
        let lock = lock(&places.lock()).map_err(|error| Skip::because("cannot lock the settings", error))?;
        Note::recover(&places.note());
        let mut note = Note::found(sizes.values(), &places.min_free, places.note());
        put_back_on_signals();
        // From here on the signal thread restores: the note is written before the first change.
        let mut changed = changed();
        note.save().map_err(|error| Skip::because("cannot note the settings", error))?;
        *changed = Some(note);
        Ok(Self { sizes, _lock: lock })
    }

    /// Lets only folios of `kib` KiB be used for anonymous memory that asks for large folios.
    ///
    /// # Errors
    /// [`Skip`] when the kernel has no such size or refuses the setting.
    pub fn only(&self, kib: usize) -> Result<(), Skip> {
        let Some(wanted) = self.sizes.get(&kib) else {
            return Err(Skip(format!("this kernel has no anonymous folios of {kib} KiB")));
        };
        // Sets the wanted size first, so that huge pages are never all off: the kernel would then stop
        // khugepaged and change its memory reserves.
        let others = self.sizes.values().filter(|path| *path != wanted).map(|path| (path.as_path(), "never"));
        let changes: Vec<(&Path, &str)> = std::iter::once((wanted.as_path(), "madvise"))
            .chain(others)
            .filter(|(path, value)| selected(path).as_deref() != Some(value))
            .collect();
        change(&changes)
    }

    /// Sets another setting of the kernel, to be restored with the others. Returns the value it has then,
    /// since the kernel may grant only a part.
    ///
    /// # Errors
    /// [`Skip`] when there is no such setting or the kernel refuses the value.
    pub fn set(&self, path: &Path, value: &str) -> Result<String, Skip> {
        change(&[(path, value)])?;
        selected(path).ok_or_else(|| cannot_set(path, &"it cannot be read back"))
    }

    /// Notes that this program repeatedly sets a setting to these values, so that the next process recognises
    /// them if this one is killed.
    ///
    /// # Errors
    /// [`Skip`] when there is no such setting, or that cannot be noted.
    pub fn expect(&self, path: &Path, values: &[&str]) -> Result<(), Skip> {
        noted(&mut changed(), path)?
            .expect(&[(path, values)], false)
            .map_err(|error| cannot_set(path, &error))
    }

    /// The value that a setting had before the first change here.
    pub fn before(&self, path: &Path) -> Option<String> {
        changed().as_ref().and_then(|note| note.before(path).map(str::to_owned))
    }

    /// Faults that got a folio of `kib` KiB since the machine started, in the whole system.
    pub fn allocated(&self, kib: usize) -> Option<u64> {
        let directory = self.sizes.get(&kib)?.parent()?;
        read(&directory.join("stats/anon_fault_alloc"))?.parse().ok()
    }
}

impl Drop for ThpSettings {
    fn drop(&mut self) {
        if let Some(note) = changed().take() {
            note.put_back();
        }
    }
}

/// Makes changes, after noting them for the next process in case this one is killed.
fn change(changes: &[(&Path, &str)]) -> Result<(), Skip> {
    let Some((first, _)) = changes.first() else { return Ok(()) };
    // Held so that the signal thread cannot restore in the middle.
    let mut changed = changed();
    let note = noted(&mut changed, first)?;
    let values: Vec<[&str; 1]> = changes.iter().map(|(_, value)| [*value]).collect();
    let expected: Vec<(&Path, &[&str])> =
        changes.iter().zip(&values).map(|((path, _), value)| (*path, value.as_slice())).collect();
    note.expect(&expected, true).map_err(|error| cannot_set(first, &error))?;
    for (path, value) in changes {
        fs::write(path, value).map_err(|error| cannot_set(path, &error))?;
    }
    note.settle(changes.iter().map(|(path, _)| *path)).map_err(|error| cannot_set(first, &error))
}

fn noted<'a>(changed: &'a mut Option<Note>, path: &Path) -> Result<&'a mut Note, Skip> {
    changed.as_mut().ok_or_else(|| cannot_set(path, &"the settings were put back"))
}

fn cannot_set(path: &Path, error: &dyn std::fmt::Display) -> Skip {
    Skip(format!("cannot set {}: {error}", quoted(path)))
}

fn lock(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
    match file.try_lock() {
        Ok(()) => return Ok(file),
        Err(TryLockError::WouldBlock) => {
            say("quire: waiting for another run that has changed the folio-size settings");
        }
        Err(TryLockError::Error(error)) => return Err(error),
    }
    file.lock()?;
    Ok(file)
}

/// Starts, once, the thread that restores the settings on a signal and then lets the signal take its default
/// action.
fn put_back_on_signals() {
    static STARTED: OnceLock<()> = OnceLock::new();
    STARTED.get_or_init(|| {
        let mut signals = match Signals::new([SIGINT, SIGTERM, SIGHUP]) {
            Ok(signals) => signals,
            Err(error) => {
                return say(format_args!(
                    "quire: cannot catch signals ({error}); the next run puts settings back"
                ));
            }
        };
        std::thread::spawn(move || {
            for signal in signals.forever() {
                // Kept locked: nothing may be changed again before the process ends.
                let mut changed = changed();
                if let Some(note) = changed.take() {
                    note.put_back();
                }
                let _ = emulate_default_handler(signal);
            }
        });
    });
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests;
