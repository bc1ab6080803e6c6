//! The memory that this host can still give: `MemAvailable`, within the limits of control groups.

use std::fs;
use std::path::Path;

use crate::host::memory;

/// The usual mount point of control groups.
const GROUPS: &str = "/sys/fs/cgroup";

/// Bytes that this process may still take without evicting other memory. An unreadable limit counts as none.
pub(super) fn available() -> u64 {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    memory::available().unwrap_or(u64::MAX).min(within_groups(&own, Path::new(GROUPS)))
}

/// Bytes within the memory controller's limits, of the group and all above it. `own` is `/proc/self/cgroup`.
fn within_groups(own: &str, mounted: &Path) -> u64 {
    let group = |line: &str| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let root = match controllers {
            "" => mounted.to_owned(),
            names if names.split(',').any(|name| name == "memory") => mounted.join("memory"),
            _ => return None,
        };
        Some(left(&root, path))
    };
    own.lines().filter_map(group).min().unwrap_or(u64::MAX)
}

/// The least bytes left of a group under `root` and all above it. A namespace may hide groups between.
fn left(root: &Path, path: &str) -> u64 {
    let own = root.join(path.trim_start_matches('/'));
    own.ancestors().take_while(|group| group.starts_with(root)).filter_map(left_in).min().unwrap_or(u64::MAX)
}

/// Version 2 of control groups, or 1. File pages that were not used lately count as available, as in
/// `MemAvailable`.
fn left_in(group: &Path) -> Option<u64> {
    let number = |file: &str| fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
    let (most, used, idle) = match number("memory.max") {
        Some(most) => (most, number("memory.current")?, "inactive_file"),
        None => (number("memory.limit_in_bytes")?, number("memory.usage_in_bytes")?, "total_inactive_file"),
    };
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let idle = stat.lines().find_map(|line| line.strip_prefix(idle)?.trim().parse::<u64>().ok()).unwrap_or(0);
    Some(most.saturating_sub(used.saturating_sub(idle)))
}

#[cfg(test)]
mod tests;
