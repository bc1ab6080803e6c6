//! The journal of changed settings: the value found and the value set for each, written to a file before the
//! change. After a kill the next start finds it.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::kdamonds;
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
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Setting {
    before: String,
    /// The values that this program may have set; empty before the first change.
    set: Vec<String>,
    /// The values that this program sets it to again and again, without noting each. They stay possible after noted changes:
    /// one part of a run may still set them when another has ended and put the value back.
    #[serde(default)]
    repeated: Vec<String>,
}

impl Setting {
    fn found(path: &Path) -> Option<Self> {
        Some(Self::with(selected(path)?))
    }

    /// Not changed yet.
    fn with(before: String) -> Self {
        Self { before, set: Vec::new(), repeated: Vec::new() }
    }

    /// Gives the setting a value, if it has another; whether it has that then. The kernel may refuse the value, or grant a part of
    /// it: that is reported, since the user must then set it, and what it has then is noted as set by this program.
    fn give(&mut self, path: &Path, wanted: &str) -> bool {
        if selected(path).as_deref() == Some(wanted) {
            return true;
        }
        let written = put(path, wanted);
        let now = selected(path);
        if now.as_deref() == Some(wanted) {
            return true;
        }
        let why = match (written, &now) {
            (Err(error), _) => error.to_string(),
            (Ok(()), Some(now)) => format!("the kernel has made it {now}"),
            (Ok(()), None) => "it cannot be read".to_owned(),
        };
        say(format_args!("quire: cannot put {} back ({why}): write {wanted} to it by hand", quoted(path)));
        let new = now.filter(|now| !self.set.contains(now));
        self.set.extend(new);
        false
    }

    /// Whether a killed process may have left this value. The kernel changes the number of huge pages one by
    /// one, and stops at a kill: while it may be changing, all between the noted numbers are possible.
    fn may_be(&self, path: &Path, value: &str, changing: bool) -> bool {
        let may_stop = |values: &[String]| {
            let (noted, value) = (values.iter().filter_map(|value| number(value)), number(value));
            value.is_some() && noted.clone().min() <= value && value <= noted.max()
        };
        self.set.iter().chain(&self.repeated).any(|set| set == value)
            || is_pool(path) && (changing && may_stop(&self.set) || may_stop(&self.repeated))
    }

    /// Whether this is a pool that gets more pages when it is put back. The others come first: the pages that
    /// they free may be what this one needs.
    fn grows(&self, path: &Path, current: Option<&str>) -> bool {
        is_pool(path) && current.and_then(number) < number(&self.before)
    }

    /// Gives the setting its old value, as [`Self::give`] does.
    fn put_back(&mut self, path: &Path) -> bool {
        let before = self.before.clone();
        self.give(path, &before)
    }
}

/// Whether this setting is the number of pages in a pool.
fn is_pool(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "nr_hugepages")
}

fn number(value: &str) -> Option<u64> {
    value.parse().ok()
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
        self.write()
    }

    fn write(&self) -> Result<()> {
        Target::named(&self.file)?.write(&serde_json::to_vec(self)?)
    }

    /// Notes that these settings have one of these values from now on: until they are settled where they are
    /// `changing` once, in which time the follower may have any value; else until all is put back.
    ///
    /// # Errors
    /// A setting that cannot be read, or a journal that cannot be written.
    pub(super) fn expect(&mut self, changes: &[(&Path, &[&str])], changing: bool) -> Result<()> {
        for (path, values) in changes {
            let current = selected(path).ok_or_else(|| anyhow::anyhow!("it cannot be read"))?;
            let setting =
                self.settings.entry((*path).to_owned()).or_insert_with(|| Setting::with(current.clone()));
            let noted = if changing { &mut setting.set } else { &mut setting.repeated };
            *noted = std::iter::once(current).chain(values.iter().map(|&value| value.to_owned())).collect();
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

    /// Restores everything, in the process that made the changes. The journal is removed, unless some settings could not be put
    /// back: it has these then, for the next start.
    pub(super) fn put_back(mut self) {
        self.note_putting_back();
        for last in [false, true] {
            let later =
                |path: &Path, setting: &Setting| setting.grows(path, selected(path).as_deref()) != last;
            self.settings.retain(|path, setting| later(path, setting) || !setting.put_back(path));
        }
        // Restored last: the kernel has changed it with the others.
        self.follower = self.follower.take().and_then(|(path, mut setting)| {
            let done = setting.put_back(&path);
            (!done).then_some((path, setting))
        });
        self.end();
    }

    /// Notes that the settings go to their old values from now on, in case this process is killed meanwhile.
    pub(super) fn note_putting_back(&mut self) {
        let mut changes = false;
        for (path, setting) in &mut self.settings {
            if let Some(current) = selected(path).filter(|current| *current != setting.before) {
                setting.set.extend([current, setting.before.clone()]);
                changes = true;
            }
        }
        self.changing |= changes;
        // Without it they are put back all the same.
        if changes && let Err(error) = self.save() {
            say(format_args!("quire: cannot write {} ({error:#})", quoted(&self.file)));
        }
    }

    /// Puts back what a killed process has set, if it left a journal. A setting with another value was changed
    /// since then, and stays.
    pub(super) fn recover(file: &Path) -> Recovered {
        match Self::read(file) {
            None => Recovered::default(),
            Some(Ok(mut journal)) => {
                let there = journal.found_now();
                journal.put_back_own(there)
            }
            Some(Err(error)) => {
                let told = format!("{} is no journal of settings ({error}): remove it", quoted(file));
                Recovered { told: vec![told], left: false, failed: true }
            }
        }
    }

    /// The journal in a file; `None` if there is none.
    pub(super) fn read(file: &Path) -> Option<serde_json::Result<Self>> {
        let journal = serde_json::from_slice::<Self>(&fs::read(file).ok()?);
        Some(journal.map(|journal| Self { file: file.to_owned(), ..journal }))
    }

    /// Takes all settings out of the journal, with their values now; the follower is the last. The file keeps
    /// what is to be put back, in case this process is killed too.
    pub(super) fn found_now(&mut self) -> Vec<Found> {
        // All are read first, since the follower changes with the others.
        let settings =
            std::mem::take(&mut self.settings).into_iter().map(|(path, setting)| (path, setting, false));
        let follower = self.follower.take().map(|(path, setting)| (path, setting, true));
        let there: Vec<Found> = settings
            .chain(follower)
            .filter_map(|(path, setting, follows)| Found::of(path, setting, (follows, self.changing)))
            .collect();
        if there.iter().any(|found| found.own && found.is_changed()) {
            self.note_recovery(&there);
        }
        there
    }

    /// Notes that these settings go to their old values from now on. A value that the user has set stays: it is
    /// taken out, and is what the follower goes back to.
    fn note_recovery(&self, there: &[Found]) {
        let noted = |found: &Found| {
            let Found { path, setting, current, own, .. } = found;
            let before = if *own { setting.before.clone() } else { current.clone() };
            let set = setting.set.iter().chain([current, &before]).cloned().collect();
            (path.clone(), Setting { set, ..Setting::with(before) })
        };
        let noted = Self {
            at: self.at.clone(),
            changing: true,
            settings: there.iter().filter(|found| found.own && !found.follows).map(noted).collect(),
            follower: there.iter().find(|found| found.follows).map(noted),
            file: self.file.clone(),
        };
        // Without it they are put back all the same.
        if let Err(error) = noted.write() {
            say(format_args!("quire: cannot write {} ({error:#})", quoted(&self.file)));
        }
    }

    fn put_back_own(mut self, mut there: Vec<Found>) -> Recovered {
        there.sort_by_key(|found| (found.follows, found.setting.grows(&found.path, Some(&found.current))));
        let mut recovered = Recovered::default();
        if there.iter().any(Found::is_changed) {
            let told = format!("a run that was killed had changed settings, the last at {}", self.at);
            recovered.told.push(told);
        }
        for mut found in there {
            if found.put_back(&mut recovered) {
                continue;
            }
            recovered.left = true;
            match found.follows {
                true => self.follower = Some((found.path, found.setting)),
                false => _ = self.settings.insert(found.path, found.setting),
            }
        }
        recovered.failed |= !self.end() || recovered.left;
        recovered
    }

    /// Removes the journal, or writes what is left of it. Whether that could be done.
    fn end(mut self) -> bool {
        let nothing_left = self.settings.is_empty() && self.follower.is_none();
        // Of what is left it is known which values this program has set.
        self.changing = false;
        let (ended, cure) = match nothing_left {
            true => (fs::remove_file(&self.file).map_err(Into::into), "remove it by hand"),
            false => (self.write(), "note what could not be put back"),
        };
        if let Err(error) = &ended {
            say(format_args!("quire: cannot change {} ({error:#}): {cure}", quoted(&self.file)));
        }
        ended.is_ok()
    }
}

/// What was put back after a kill.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Recovered {
    /// One line for each setting that was changed.
    pub(super) told: Vec<String>,
    /// Settings are not as they were, and the journal has them.
    pub(super) left: bool,
    /// Something went wrong, that or another thing.
    pub(super) failed: bool,
}

/// A setting after the process that changed it has been killed.
#[derive(Debug)]
pub(super) struct Found {
    path: PathBuf,
    setting: Setting,
    current: String,
    /// The killed process has set its value.
    own: bool,
    /// The kernel changes it along with the others.
    follows: bool,
}

impl Found {
    /// A follower may have any value while the others are `changing`.
    fn of(path: PathBuf, setting: Setting, (follows, changing): (bool, bool)) -> Option<Self> {
        let current = selected(&path)?;
        let own = follows && changing || setting.may_be(&path, &current, changing);
        Some(Self { path, setting, current, own, follows })
    }

    fn is_changed(&self) -> bool {
        self.current != self.setting.before
    }

    /// Whether it is as it should be now: as before the run, or as the user has set it since.
    fn put_back(&mut self, recovered: &mut Recovered) -> bool {
        let changed = self.is_changed();
        let Self { path, setting, current, own, .. } = self;
        if *own {
            let done = setting.put_back(path);
            if done && changed {
                recovered.told.push(format!("put back: {} to {}", quoted(&*path), setting.before));
            }
            return done;
        }
        // The kernel may have changed the follower with the others just now.
        let done = setting.give(path, current);
        if changed {
            recovered.told.push(format!(
                "left alone: {} is {current}, which that run had not set; it was {} before",
                quoted(&*path),
                setting.before
            ));
        }
        done
    }
}

/// Writes a setting, by one call: not even of a copy is a part ever read. DAMON's threads are
/// stopped first, since the kernel keeps their number while one of them runs.
///
/// # Errors
/// The kernel refuses the value, or this user may not set it.
pub(super) fn put(path: &Path, value: &str) -> io::Result<()> {
    if value == "0" && path.file_name().is_some_and(|name| name == kdamonds::NUMBER) {
        kdamonds::stop_all(path);
    }
    OpenOptions::new().write(true).open(path)?.write_all(format!("{value}\n").as_bytes())
}

/// The time in UTC, to the second.
fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}
