//! Which file systems there are, for `df` and `mount`.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::{self, Write};

use crate::errno::Errno;
use crate::files::mount::{DEV_FS, PROC_FS, ROOT_FS, SHM_FS, SYS_FS};
use crate::files::mounted;
use crate::observe::{MachineFile, Writer};

/// What is mounted: where, the type, and the number of the file system.
const MOUNTS: [(&str, &str, u64); 5] = [
    ("/", "tmpfs", ROOT_FS),
    ("/dev", "tmpfs", DEV_FS),
    ("/dev/shm", "tmpfs", SHM_FS),
    ("/proc", "proc", PROC_FS),
    ("/sys", "sysfs", SYS_FS),
];

/// Writes `/proc/PID/mounts`.
///
/// # Errors
/// Those of the writer.
pub fn mounts(out: &mut dyn Write) -> fmt::Result {
    MOUNTS.iter().try_for_each(|(at, kind, _)| writeln!(out, "{kind} {at} {kind} rw,relatime 0 0"))?;
    mounted::each(|disk, at, writable| {
        writeln!(out, "/dev/{disk} {} ext2 {},relatime 0 0", at.escape_ascii(), rights(writable))
    })
}

/// Writes `/proc/PID/mountinfo`. A mount has the number of its line; the root is its own parent.
///
/// # Errors
/// Those of the writer.
pub fn mountinfo(out: &mut dyn Write) -> fmt::Result {
    for (line, (at, kind, fs)) in MOUNTS.iter().enumerate() {
        let below = |(above, ..): &&(&str, &str, u64)| {
            at.strip_prefix(above).is_some_and(|rest| rest.starts_with('/'))
        };
        let parent = MOUNTS.iter().position(|mount| below(&mount)).unwrap_or(0) + 1;
        writeln!(out, "{} {parent} 0:{fs} / {at} rw,relatime - {kind} {kind} rw", line + 1)?;
    }
    let mut line = MOUNTS.len();
    mounted::each(|disk, at, writable| {
        line += 1;
        let (at, rights) = (at.escape_ascii(), rights(writable));
        writeln!(out, "{line} 1 254:0 / {at} {rights},relatime - ext2 /dev/{disk} {rights}")
    })
}

fn rights(writable: bool) -> &'static str {
    if writable { "rw" } else { "ro" }
}

/// Adds the files that show them.
pub fn add(files: &mut Vec<MachineFile>) {
    files.push(text("/proc/mounts", mounts));
    files.push(text("/proc/filesystems", |out| {
        ["tmpfs", "proc", "sysfs"].iter().try_for_each(|kind| writeln!(out, "nodev\t{kind}"))?;
        writeln!(out, "\text2")
    }));
    files.push(text("/proc/diskstats", mounted::statistics));
}

fn text(path: &str, write: fn(&mut dyn Write) -> core::fmt::Result) -> MachineFile {
    let text: Writer = Box::new(move |out| write(out).map_err(|_| Errno::ENOMEM));
    MachineFile { path: String::from(path), mode: 0o444, text: Some(text), control: None, bytes: None }
}
