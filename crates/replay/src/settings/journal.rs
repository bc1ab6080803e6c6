//! The journal of changed settings: the value found and the value set for each, written to a file before the
//! change. After a kill the next start finds it.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::host::thp::selected;
use crate::output::{Target, quoted, say};

/// What was found and what was set.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Journal {
    /// When the last of it was noted.
    at: String,
    /// Changes have begun and may not have ended.
    changing: bool,
    settings: BTreeMap<PathBuf, Setting>,
    /// A setting that the kernel changes along with the others.
    follower: Option<(PathBuf, Setting)>,
    /// Where the journal is.
    #[serde(skip)]
    file: PathBuf,
}

/// One setting.
#[derive(Debug, Serialize, Deserialize)]
struct Setting {
    before: String,
    /// The values that this program may have set; empty before the first change.
    set: Vec<String>,
}

impl Setting {
    fn found(path: &Path) -> Option<Self> {
        Some(Self { before: selected(path)?, set: Vec::new() })
    }
}

impl Journal {
    /// A journal of the settings as they are, not written yet.
    pub(super) fn found<'a>(
        settings: impl Iterator<Item = &'a PathBuf>,
        follower: &Path,
        file: PathBuf,
    ) -> Self {
        let settings = settings.filter_map(|path| Some((path.clone(), Setting::found(path)?))).collect();
        let follower = Setting::found(follower).map(|setting| (follower.to_owned(), setting));
        Self { at: now(), changing: false, settings, follower, file }
    }

    /// The value that was found.
    pub(super) fn before(&self, path: &Path) -> Option<&str> {
        self.settings.get(path).map(|setting| setting.before.as_str())
    }

    /// Writes the journal.
    ///
    /// # Errors
    /// When its directory cannot be written.
    pub(super) fn save(&mut self) -> Result<()> {
        self.at = now();
        Target::named(&self.file)?.write(&serde_json::to_vec(self)?)
    }

    /// Notes that these settings have one of these values from now on. The follower may have any value while
    /// they are `changing`.
    ///
    /// # Errors
    /// A setting that cannot be read, or a journal that cannot be written.
    pub(super) fn expect(&mut self, changes: &[(&Path, &[&str])], changing: bool) -> Result<()> {
        for (path, values) in changes {
            let current = selected(path).ok_or_else(|| anyhow::anyhow!("it cannot be read"))?;
            let setting = self
                .settings
                .entry((*path).to_owned())
                .or_insert_with(|| Setting { before: current.clone(), set: Vec::new() });
            setting.set =
                std::iter::once(current).chain(values.iter().map(|&value| value.to_owned())).collect();
        }
        self.changing = changing;
        self.save()
    }

    /// Notes that these settings keep their current values until the next change.
    ///
    /// # Errors
    /// A journal that cannot be written.
    pub(super) fn settle<'a>(&mut self, paths: impl Iterator<Item = &'a Path>) -> Result<()> {
        for path in paths {
            if let (Some(setting), Some(current)) = (self.settings.get_mut(path), selected(path)) {
                setting.set = vec![current];
            }
        }
        if let Some((path, setting)) = &mut self.follower {
            setting.set = selected(path).into_iter().collect();
        }
        self.changing = false;
        self.save()
    }

    /// Restores everything, in the process that made the changes, and removes the journal.
    pub(super) fn put_back(&self) {
        let follower = self.follower.iter().map(|(path, setting)| (path, setting));
        for (path, setting) in self.settings.iter().chain(follower) {
            let _ = selected(path).as_ref() == Some(&setting.before) || write(path, &setting.before);
        }
        self.remove();
    }

    /// Puts back what a killed process has set, if it left a journal. A setting with another value was changed
    /// since then, and stays.
    pub(super) fn recover(file: &Path) -> Recovered {
        let Ok(text) = fs::read(file) else { return Recovered::default() };
        match serde_json::from_slice::<Journal>(&text) {
            Ok(journal) => Journal { file: file.to_owned(), ..journal }.put_back_own(),
            Err(error) => {
                let told = format!("{} is no journal of settings ({error}): remove it", quoted(file));
                Recovered { told: vec![told], failed: true }
            }
        }
    }

    fn put_back_own(&self) -> Recovered {
        // Reads all settings first, since the follower changes with the others; it is restored last.
        let settings = self.settings.iter().map(|(path, setting)| (path, setting, false));
        let follower = self.follower.iter().map(|(path, setting)| (path, setting, self.changing));
        let there: Vec<Found<'_>> = settings
            .chain(follower)
            .filter_map(|(path, setting, own)| Found::of(path, setting, own))
            .collect();
        let mut recovered = Recovered::default();
        if there.iter().any(Found::is_changed) {
            let told = format!("a run that was killed had changed settings, the last at {}", self.at);
            recovered.told.push(told);
        }
        there.iter().for_each(|found| found.put_back(&mut recovered));
        recovered.failed |= !self.remove();
        recovered
    }

    fn remove(&self) -> bool {
        let removed = fs::remove_file(&self.file);
        if let Err(error) = &removed {
            say(format_args!("quire: cannot remove {} ({error}): remove it by hand", quoted(&self.file)));
        }
        removed.is_ok()
    }
}

/// What was put back after a kill.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Recovered {
    /// One line for each setting that was changed.
    pub(super) told: Vec<String>,
    /// Something could not be put back.
    pub(super) failed: bool,
}

/// A setting after the process that changed it has been killed.
struct Found<'a> {
    path: &'a Path,
    before: &'a str,
    current: String,
    /// The killed process has set its value.
    own: bool,
}

impl<'a> Found<'a> {
    fn of(path: &'a Path, setting: &'a Setting, own: bool) -> Option<Self> {
        let current = selected(path)?;
        let own = own || setting.set.contains(&current);
        Some(Self { path, before: &setting.before, current, own })
    }

    fn is_changed(&self) -> bool {
        self.current != self.before
    }

    fn put_back(&self, recovered: &mut Recovered) {
        let Self { path, before, current, own } = self;
        let wanted = if *own { before } else { current.as_str() };
        let written = selected(path).as_deref() == Some(wanted) || write(path, wanted);
        recovered.failed |= !written;
        match (self.is_changed(), own) {
            (true, true) if written => {
                recovered.told.push(format!("put back: {} to {before}", quoted(*path)));
            }
            (true, false) => recovered.told.push(format!(
                "left alone: {} is {current}, which that run had not set; it was {before} before",
                quoted(*path)
            )),
            _ => {}
        }
    }
}

/// Whether the kernel accepted the value. If not, it is reported, since the user must then set it.
fn write(path: &Path, value: &str) -> bool {
    let written = put(path, value);
    if let Err(error) = &written {
        say(format_args!("quire: cannot put {} back ({error}): write {value} to it by hand", quoted(path)));
    }
    written.is_ok()
}

/// Writes a setting, by one call: not even of a copy is a part ever read.
///
/// # Errors
/// The kernel refuses the value, or this user may not set it.
pub(super) fn put(path: &Path, value: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(format!("{value}\n").as_bytes())
}

/// The time in UTC, to the second.
fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}
