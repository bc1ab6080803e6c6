//! The sizes of folios for anonymous memory.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::guard::{Settings, SettingsError};
use crate::host::thp::{selected, sizes};
use crate::output::quoted;

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
        self.choose(&sizes, Some((wanted, "madvise")))
    }

    /// Sets one size to a value, and all others to `never`.
    fn choose(
        &self,
        sizes: &BTreeMap<usize, PathBuf>,
        chosen: Option<(&Path, &str)>,
    ) -> Result<(), SettingsError> {
        // Sets the chosen size first, so that huge pages are never all off between two choices: the kernel would
        // then stop khugepaged and change its memory reserves.
        let wanted = chosen.map(|(path, _)| path);
        let others = sizes.values().map(PathBuf::as_path).filter(|path| Some(*path) != wanted);
        let changes: Vec<(&Path, &str)> = chosen
            .into_iter()
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
        let counts = self.places().settings.join(format!("hugepages-{kib}kB/stats/anon_fault_alloc"));
        fs::read_to_string(counts).ok()?.trim().parse().ok()
    }
}
