//! Reads the settings of transparent huge pages.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The directory of the settings of the running kernel.
pub fn root() -> PathBuf {
    "/sys/kernel/mm/transparent_hugepage".into()
}

/// The setting of every anonymous folio size under `root`, by size in KiB.
pub fn sizes(root: &Path) -> BTreeMap<usize, PathBuf> {
    let Ok(entries) = fs::read_dir(root) else { return BTreeMap::new() };
    let size = |entry: io::Result<fs::DirEntry>| {
        let path = entry.ok()?.path();
        let kib = path.file_name()?.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let setting = path.join("enabled");
        setting.exists().then_some((kib, setting))
    };
    entries.filter_map(size).collect()
}

/// Asks the kernel to move pages together, so that larger folios can be had. Where this user may not ask, nothing happens,
/// and trying again is all that is left.
pub fn compact() {
    let _ = fs::write("/proc/sys/vm/compact_memory", "1");
}

/// The value in brackets in the first line of the setting `path`, or the whole line if it has no brackets.
pub fn selected(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.lines().next().unwrap_or_default();
    let bracketed = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(value, _)| value);
    Some(bracketed.unwrap_or(text).trim().to_owned())
}
