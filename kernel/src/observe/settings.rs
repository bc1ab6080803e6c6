//! What a user can set by writing to files, and the names of this kernel.

use core::sync::atomic::{AtomicU64, AtomicUsize};

use crate::sync::Mutex;
use crate::task::coredump::Pattern;
use quire::limits::MAX_MAPPINGS;
use quire_interop::proc::TransparentHuge;

/// What a user can set.
pub struct Settings {
    /// `vm.overcommit_memory`: 0 refuses what can never fit, 1 nothing, 2 what is beyond the limit.
    pub overcommit_memory: AtomicU64,
    /// `vm.overcommit_ratio`: the percentage of memory that counts for the limit.
    pub overcommit_ratio: AtomicU64,
    /// `vm.overcommit_kbytes`: the same in KiB; 0 for the percentage.
    pub overcommit_kbytes: AtomicU64,
    /// `vm.max_map_count`.
    pub max_map_count: AtomicUsize,
    /// `kernel.pid_max`: one more than the largest number of a task.
    pub pid_max: AtomicU64,
    /// `kernel.shmmax`: the largest segment.
    pub shmmax: AtomicU64,
    /// `kernel.shmall`: the most pages of all segments.
    pub shmall: AtomicU64,
    /// `kernel.shmmni`: the most segments.
    pub shmmni: AtomicU64,
    /// `kernel.shm_next_id`: the number of the next segment, once; the largest value for none.
    pub shm_next_id: AtomicU64,
    /// `kernel.core_pattern`: the names of core dumps.
    pub core_pattern: Mutex<Pattern>,
    /// `kernel.core_uses_pid`: they end in the number of the process.
    pub core_uses_pid: AtomicU64,
    /// `/sys/kernel/mm/transparent_hugepage/enabled` and its like.
    pub huge: Mutex<TransparentHuge>,
}

/// Linux's limits of System V shared memory, which set none.
const SHM_MOST: u64 = u64::MAX - (1 << 24);

/// The settings.
pub static SETTINGS: Settings = Settings {
    overcommit_memory: AtomicU64::new(0),
    overcommit_ratio: AtomicU64::new(50),
    overcommit_kbytes: AtomicU64::new(0),
    max_map_count: AtomicUsize::new(MAX_MAPPINGS),
    pid_max: AtomicU64::new(32768),
    shmmax: AtomicU64::new(SHM_MOST),
    shmall: AtomicU64::new(SHM_MOST),
    shmmni: AtomicU64::new(4096),
    shm_next_id: AtomicU64::new(u64::MAX),
    core_pattern: Mutex::new(Pattern::first()),
    core_uses_pid: AtomicU64::new(0),
    huge: Mutex::new(TransparentHuge::new()),
};

/// Names of this kernel, as `uname(2)` gives them.
pub struct Version {
    /// The kernel.
    pub system: &'static str,
    /// The machine.
    pub node: &'static str,
    /// The version of Linux whose calls it has.
    pub release: &'static str,
    /// Which kernel it really is.
    pub build: &'static str,
}

/// The names.
pub static VERSION: Version =
    Version { system: "Linux", node: "quire", release: "6.1.0", build: "quire-kernel" };
