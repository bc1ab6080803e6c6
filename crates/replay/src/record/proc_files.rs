//! Files of `/proc` as text. A process or a file may have a name of any bytes; what is not UTF-8 is replaced.

use std::path::Path;
use std::{fs, io};

use procfs::FromRead;
use procfs::process::Status;

/// The whole file.
pub(super) fn text(path: impl AsRef<Path>) -> io::Result<String> {
    let bytes = fs::read(path)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The status of a process. `procfs` itself refuses names that are not UTF-8.
pub(super) fn status(pid: i32) -> io::Result<Status> {
    Status::from_read(text(format!("/proc/{pid}/status"))?.as_bytes()).map_err(io::Error::other)
}

/// The private anonymous memory of a process that leaves of 2 MiB map.
pub(super) fn huge_bytes(pid: i32) -> Option<u64> {
    let rollup = text(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let kib = rollup.lines().find_map(|line| line.strip_prefix("AnonHugePages:"))?;
    Some(kib.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}
