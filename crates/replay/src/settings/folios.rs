//! The sizes of folios for anonymous memory.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::bail;

use super::Places;
use super::guard::{Settings, SettingsError};
use crate::host::thp::{selected, sizes};
use crate::output::{quoted, say};

/// How often something is done until the folio sizes stay as they were set.
const ATTEMPTS: usize = 5;

/// Folio sizes of anonymous memory in KiB; all others are off.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sizes<'a> {
    /// For all memory.
    pub always: &'a [usize],
    /// For memory that asks.
    pub madvise: &'a [usize],
}

impl Settings {
    /// Lets only folios of `kib` KiB be used for anonymous memory that asks for large folios. The size is set
    /// to `madvise`, not to `always`, so that other processes keep their folios.
    ///
    /// # Errors
    /// [`SettingsError`] when the kernel has no such size or refuses the setting.
    pub fn only(&self, kib: usize) -> Result<(), SettingsError> {
        let sizes = self.sizes()?;
        let Some(wanted) = sizes.get(&kib) else {
            return Err(SettingsError(format!("this kernel has no anonymous folios of {kib} KiB")));
        };
        self.choose(&sizes, &[(wanted, "madvise")])
    }

    /// Gives folios of these sizes in KiB, where they fit, to all anonymous memory, whether it asks for them or not.
    /// Without a size all memory has single pages.
    ///
    /// # Errors
    /// [`SettingsError`] when the kernel lacks a size or refuses the setting.
    pub fn always(&self, kib: &[usize]) -> Result<(), SettingsError> {
        self.give(&Sizes { always: kib, ..Sizes::default() })
    }

    /// The same, and further sizes for memory that asks.
    ///
    /// # Errors
    /// As [`Self::always`].
    pub fn give(&self, given: &Sizes<'_>) -> Result<(), SettingsError> {
        let sizes = self.sizes()?;
        let with = |kib: &usize, value| sizes.get(kib).map(|path| (path.as_path(), value)).ok_or(*kib);
        let asking = given.madvise.iter().map(|kib| with(kib, "madvise"));
        let wanted: Result<Vec<_>, usize> =
            given.always.iter().map(|kib| with(kib, "always")).chain(asking).collect();
        let lacking = |kib| SettingsError(format!("this kernel has no anonymous folios of {kib} KiB"));
        self.choose(&sizes, &wanted.map_err(lacking)?)
    }

    /// Does something while anonymous memory has these sizes, as [`Self::give`] gives them: again if another
    /// program has changed them meanwhile.
    ///
    /// # Errors
    /// As [`Self::always`], those of `run`, and a program that changes the sizes again and again.
    pub fn while_given<T>(
        &self,
        given: &Sizes<'_>,
        mut run: impl FnMut() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        for _ in 0..ATTEMPTS {
            self.give(given)?;
            let done = run()?;
            if self.is_given(given) {
                return Ok(done);
            }
            say(
                "quire: another program has changed the folio sizes of the kernel: running the program again",
            );
        }
        bail!("another program keeps changing the folio sizes of the kernel: end it first")
    }

    /// Whether the settings are still as [`Self::give`] has left them.
    pub(super) fn is_given(&self, given: &Sizes<'_>) -> bool {
        let wanted = |size: usize| match given {
            Sizes { always, .. } if always.contains(&size) => "always",
            Sizes { madvise, .. } if madvise.contains(&size) => "madvise",
            _ => "never",
        };
        let mut sizes = sizes(&self.places().settings).into_iter();
        sizes.all(|(size, path)| selected(&path).as_deref() == Some(wanted(size)))
    }

    /// The folio sizes of this kernel in KiB, single pages among them.
    pub fn folio_sizes(places: &Places) -> Vec<usize> {
        std::iter::once(4).chain(sizes(&places.settings).into_keys()).collect()
    }

    /// Keeps khugepaged from collapsing the memory of programs: it looks at one page, and then sleeps for weeks.
    ///
    /// # Errors
    /// [`SettingsError`] when the kernel refuses a setting.
    pub fn hold_khugepaged(&self) -> Result<(), SettingsError> {
        let khugepaged = self.places().settings.join("khugepaged");
        for (name, value) in [("pages_to_scan", "1"), ("scan_sleep_millisecs", "4294967295")] {
            let path = khugepaged.join(name);
            if path.exists() && selected(&path).as_deref() != Some(value) {
                self.set(&path, value)?;
            }
        }
        Ok(())
    }

    /// Gives shared memory folios of these sizes in KiB and of no others, where they lie in its mapping or
    /// file.
    ///
    /// # Errors
    /// [`SettingsError`] when the kernel lacks a size or refuses the setting.
    pub fn shmem(&self, kib: &[usize]) -> Result<(), SettingsError> {
        let sizes = shmem_sizes(&self.places().settings);
        if let Some(missing) = kib.iter().find(|kib| !sizes.contains_key(kib)) {
            return Err(SettingsError(format!(
                "this kernel has no folios of {missing} KiB for shared memory"
            )));
        }
        let overall = self.places().settings.join("shmem_enabled");
        // With these the kernel does not look at what the sizes say.
        if selected(&overall).is_some_and(|value| ["deny", "force"].contains(&value.as_str())) {
            self.set(&overall, "never")?;
        }
        let value = |size: &usize| if kib.contains(size) { "within_size" } else { "never" };
        let changes: Vec<(&Path, &str)> = sizes
            .iter()
            .map(|(size, path)| (path.as_path(), value(size)))
            .filter(|(path, value)| selected(path).as_deref() != Some(value))
            .collect();
        self.change(&changes)
    }

    /// Sets settings of khugepaged, by the names of their files.
    ///
    /// # Errors
    /// [`SettingsError`] when the kernel lacks a setting or refuses the value.
    pub fn khugepaged(&self, values: &[(&str, u64)]) -> Result<(), SettingsError> {
        for (name, value) in values {
            // `shrink_underused` lies beside its directory.
            let of_khugepaged = self.places().settings.join("khugepaged").join(name);
            let path = if of_khugepaged.exists() { of_khugepaged } else { self.places().settings.join(name) };
            let value = value.to_string();
            if selected(&path).as_deref() != Some(&value) {
                self.set(&path, &value)?;
            }
        }
        Ok(())
    }

    /// Faults that found no free folio of `kib` KiB since the machine started, in the whole system.
    pub fn fell_back(&self, kib: usize) -> Option<u64> {
        self.count(kib, "anon_fault_fallback")
    }

    /// Sets some sizes to values, and all others to `never`.
    fn choose(
        &self,
        sizes: &BTreeMap<usize, PathBuf>,
        chosen: &[(&Path, &str)],
    ) -> Result<(), SettingsError> {
        // Sets the chosen sizes first, so that huge pages are never all off between two choices: the kernel would
        // then stop khugepaged and change its memory reserves.
        let is_chosen = |path: &Path| chosen.iter().any(|(wanted, _)| *wanted == path);
        let others = sizes.values().map(PathBuf::as_path).filter(|path| !is_chosen(path));
        let changes: Vec<(&Path, &str)> = chosen
            .iter()
            .copied()
            .chain(others.map(|path| (path, "never")))
            .filter(|(path, value)| selected(path).as_deref() != Some(value))
            .collect();
        self.change(&changes)
    }

    /// The setting of every size, by KiB.
    fn sizes(&self) -> Result<BTreeMap<usize, PathBuf>, SettingsError> {
        let sizes = sizes(&self.places().settings);
        if sizes.is_empty() {
            return Err(SettingsError(format!(
                "{} has no per-size settings: needs Linux 6.8 or later with transparent huge pages",
                quoted(&self.places().settings)
            )));
        }
        Ok(sizes)
    }

    /// Faults that got a folio of `kib` KiB since the machine started, in the whole system.
    pub fn allocated(&self, kib: usize) -> Option<u64> {
        self.count(kib, "anon_fault_alloc")
    }

    fn count(&self, kib: usize, name: &str) -> Option<u64> {
        let count = self.places().settings.join(format!("hugepages-{kib}kB/stats/{name}"));
        fs::read_to_string(count).ok()?.trim().parse().ok()
    }
}

/// The setting of every folio size of shared memory under `root`, by size in KiB. 8 KiB is one of them, and none
/// of anonymous memory.
pub(crate) fn shmem_sizes(root: &Path) -> BTreeMap<usize, PathBuf> {
    let Ok(entries) = fs::read_dir(root) else { return BTreeMap::new() };
    let size = |entry: io::Result<fs::DirEntry>| {
        let path = entry.ok()?.path();
        let kib = path.file_name()?.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let setting = path.join("shmem_enabled");
        setting.exists().then_some((kib, setting))
    };
    entries.filter_map(size).collect()
}
