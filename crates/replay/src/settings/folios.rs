//! The sizes of folios for anonymous memory.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::bail;

use super::Places;
use super::guard::{Settings, SettingsError};
use crate::host::thp::{selected, sizes};
use crate::output::{quoted, say};

/// How often something is done until the folio sizes stay as they were set.
const ATTEMPTS: usize = 5;

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
        let sizes = self.sizes()?;
        let wanted = |kib| sizes.get(kib).map(|path| (path.as_path(), "always")).ok_or(*kib);
        let wanted: Result<Vec<_>, usize> = kib.iter().map(wanted).collect();
        let lacking = |kib| SettingsError(format!("this kernel has no anonymous folios of {kib} KiB"));
        self.choose(&sizes, &wanted.map_err(lacking)?)
    }

    /// Does something while all anonymous memory has these sizes, as [`Self::always`] gives them: again if another program
    /// has changed them meanwhile.
    ///
    /// # Errors
    /// As [`Self::always`], those of `run`, and a program that changes the sizes again and again.
    pub fn while_always<T>(
        &self,
        kib: &[usize],
        mut run: impl FnMut() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        for _ in 0..ATTEMPTS {
            self.always(kib)?;
            let done = run()?;
            if self.is_always(kib) {
                return Ok(done);
            }
            say(
                "quire: another program has changed the folio sizes of the kernel: running the program again",
            );
        }
        bail!("another program keeps changing the folio sizes of the kernel: end it first")
    }

    /// Whether the settings are still as [`Self::always`] has left them.
    pub(super) fn is_always(&self, kib: &[usize]) -> bool {
        let wanted = |size: usize| if kib.contains(&size) { "always" } else { "never" };
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
