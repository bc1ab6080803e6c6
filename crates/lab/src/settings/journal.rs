//! The journal of changed settings: the value found and the value set for each, written to a file before the
//! change. After a kill the next start finds it.

use std::collections::BTreeMap;
use std::fs;
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

    /// Restores what a killed process has set, if it left a journal. A setting with another value was changed
    /// since then, and stays. Reports what it did.
    pub(super) fn recover(file: &Path) {
        let Ok(text) = fs::read(file) else { return };
        match serde_json::from_slice::<Journal>(&text) {
            Ok(journal) => Journal { file: file.to_owned(), ..journal }.put_back_own(),
            Err(error) => {
                say(format_args!("quire: {} is no journal of settings ({error}): remove it", quoted(file)));
            }
        }
    }

    fn put_back_own(&self) {
        // Reads all settings first, since the follower changes with the others; it is restored last.
        let settings = self.settings.iter().map(|(path, setting)| (path, setting, false));
        let follower = self.follower.iter().map(|(path, setting)| (path, setting, self.changing));
        let there: Vec<Found<'_>> = settings
            .chain(follower)
            .filter_map(|(path, setting, own)| Found::of(path, setting, own))
            .collect();
        if there.iter().any(Found::is_changed) {
            say(format_args!("quire: a run that was killed had changed settings, the last at {}", self.at));
        }
        there.iter().for_each(Found::put_back);
        self.remove();
    }

    fn remove(&self) {
        if let Err(error) = fs::remove_file(&self.file) {
            say(format_args!("quire: cannot remove {} ({error}): remove it by hand", quoted(&self.file)));
        }
    }
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

    fn put_back(&self) {
        let Self { path, before, current, own } = self;
        let wanted = if *own { before } else { current.as_str() };
        let written = selected(path).as_deref() == Some(wanted) || write(path, wanted);
        match (self.is_changed(), own) {
            (true, true) if written => say(format_args!("quire: put back: {} to {before}", quoted(*path))),
            (true, false) => say(format_args!(
                "quire: left alone: {} is {current}, which that run had not set; it was {before} before",
                quoted(*path)
            )),
            _ => {}
        }
    }
}

/// Whether the kernel accepted the value. If not, it is reported, since the user must then set it.
fn write(path: &Path, value: &str) -> bool {
    let written = fs::write(path, value);
    if let Err(error) = &written {
        say(format_args!("quire: cannot put {} back ({error}): write {value} to it by hand", quoted(path)));
    }
    written.is_ok()
}

/// The time in UTC, to the second.
fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}
