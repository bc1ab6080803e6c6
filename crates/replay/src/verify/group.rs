//! A control group for the program whose samples are taken, so that those of other programs are not counted.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::thread::sleep;
use std::time::{Duration, Instant};

use procfs::ProcResult;
use procfs::process::{MountInfo, Process};

/// The names of such groups, before the number of the process that made them.
const NAME: &str = "quire-verify-";

/// The file by which processes join a group.
const MEMBERS: &str = "cgroup.procs";

/// How long the group's last process may take to end.
const PATIENCE: Duration = Duration::from_secs(1);

/// A control group without processes; dropping it removes it.
pub(super) struct Group {
    /// As `perf` calls it: below the mount point.
    pub(super) name: String,
    directory: PathBuf,
}

impl Group {
    /// Makes one where `perf` looks for groups; `None` where this user cannot.
    pub(super) fn make() -> Option<Self> {
        let name = format!("{NAME}{}", process::id());
        let mounts = mounts().ok()?;
        let root = hierarchy(&mounts)?;
        remove_left(root);
        let directory = root.join(&name);
        match fs::create_dir(&directory) {
            // Of a killed run whose process had this number.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made.ok()?,
        }
        Some(Self { name, directory })
    }

    /// A process that writes its number here joins.
    pub(super) fn members(&self) -> PathBuf {
        self.directory.join(MEMBERS)
    }

    /// A process that writes its number here leaves it.
    pub(super) fn outside(&self) -> PathBuf {
        self.directory.with_file_name(MEMBERS)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that is about to end is still a member. What a program leaves running keeps the group.
        let since = Instant::now();
        while fs::remove_dir(&self.directory).is_err() && since.elapsed() < PATIENCE {
            sleep(Duration::from_millis(5));
        }
    }
}

/// Removes the groups of killed runs, but for those in which a program runs still.
fn remove_left(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let maker = name.to_str().and_then(|name| name.strip_prefix(NAME)?.parse::<u32>().ok());
        if maker.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

fn mounts() -> ProcResult<Vec<MountInfo>> {
    Ok(Process::myself()?.mountinfo()?.0)
}

/// The hierarchy of version 1 that counts events, or else the one of version 2.
fn hierarchy(mounts: &[MountInfo]) -> Option<&Path> {
    let counts = |mount: &&MountInfo| mount.super_options.contains_key("perf_event");
    let first = mounts.iter().find(|mount| mount.fs_type == "cgroup" && counts(mount));
    let second = || mounts.iter().find(|mount| mount.fs_type == "cgroup2");
    first.or_else(second).map(|mount| mount.mount_point.as_path())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(lines: &[&str]) -> Vec<MountInfo> {
        lines.iter().map(|line| MountInfo::from_line(line).expect("a line of mountinfo")).collect()
    }

    #[test]
    fn groups_of_killed_runs_are_removed() {
        let root = tempfile::tempdir().unwrap();
        // No process has so high a number.
        let (left, full) = (format!("{NAME}4200000000"), format!("{NAME}4200000001"));
        let (own, other) = (format!("{NAME}{}", process::id()), format!("{NAME}x"));
        for name in [&left, &full, &own, &other] {
            fs::create_dir(root.path().join(name)).unwrap();
        }
        fs::write(root.path().join(&full).join("member"), "").unwrap();
        remove_left(root.path());
        let stays = [&left, &full, &own, &other].map(|name| root.path().join(name).exists());
        assert_eq!(stays, [false, true, true, true]);
    }

    #[test]
    fn groups_are_made_where_perf_looks_for_them() {
        let two = "31 23 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate";
        let cpu = "32 23 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct";
        let one = "33 23 0:29 / /sys/fs/cgroup/perf rw - cgroup cgroup rw,perf_event";
        assert_eq!(hierarchy(&parsed(&[cpu, two])), Some(Path::new("/sys/fs/cgroup")));
        assert_eq!(hierarchy(&parsed(&[two, one])), Some(Path::new("/sys/fs/cgroup/perf")));
        assert_eq!(hierarchy(&parsed(&[cpu])), None);
    }
}
