//! Where the settings, the journal and the lock are.

use std::env;
use std::path::PathBuf;

/// The paths of the settings and of the journal: a parameter, so that tests can use a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// The root directory of all of them.
    pub root: PathBuf,
    /// The directory of the settings of transparent huge pages.
    pub settings: PathBuf,
    /// A file beside them whose value the kernel changes along (`vm.min_free_kbytes`).
    pub min_free: PathBuf,
    /// The directory of the pools of huge pages.
    pub pools: PathBuf,
    /// The directory of DAMON's threads.
    pub kdamonds: PathBuf,
    /// How much memory is free in pieces of each size.
    pub buddyinfo: PathBuf,
    /// The directory of the journal and of the lock file; emptied by a restart of the machine, as the settings are.
    pub state: PathBuf,
}

impl Places {
    /// The paths of the running kernel. In tests the variable `QUIRE_SETTINGS` names a directory with a copy.
    pub fn of_this_machine() -> Self {
        Self::under(env::var_os("QUIRE_SETTINGS").map_or_else(|| "/".into(), PathBuf::from))
    }

    /// The paths under this root directory.
    pub fn under(root: PathBuf) -> Self {
        Self {
            settings: root.join("sys/kernel/mm/transparent_hugepage"),
            min_free: root.join("proc/sys/vm/min_free_kbytes"),
            pools: root.join("sys/kernel/mm/hugepages"),
            kdamonds: root.join("sys/kernel/mm/damon/admin/kdamonds"),
            buddyinfo: root.join("proc/buddyinfo"),
            state: root.join("run"),
            root,
        }
    }

    /// The file that holds the values to put back; it exists only while they are changed.
    pub fn journal(&self) -> PathBuf {
        self.state.join("quire-settings.json")
    }

    pub(super) fn lock(&self) -> PathBuf {
        self.state.join("quire-settings.lock")
    }
}
