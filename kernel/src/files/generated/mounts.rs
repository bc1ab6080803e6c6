//! Which file systems there are, for `df` and `mount`.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;

use crate::errno::Errno;
use crate::observe::{MachineFile, Writer};

/// What is mounted: where, and the type.
const MOUNTS: [(&str, &str); 5] =
    [("/", "tmpfs"), ("/dev", "tmpfs"), ("/dev/shm", "tmpfs"), ("/proc", "proc"), ("/sys", "sysfs")];

/// Adds the files that show them.
pub fn add(files: &mut Vec<MachineFile>) {
    files.push(text("/proc/mounts", |out| {
        MOUNTS.iter().try_for_each(|(at, kind)| writeln!(out, "{kind} {at} {kind} rw,relatime 0 0"))
    }));
    files.push(text("/proc/filesystems", |out| {
        ["tmpfs", "proc", "sysfs"].iter().try_for_each(|kind| writeln!(out, "nodev\t{kind}"))
    }));
}

fn text(path: &str, write: fn(&mut dyn Write) -> core::fmt::Result) -> MachineFile {
    let text: Writer = Box::new(move |out| write(out).map_err(|_| Errno::ENOMEM));
    MachineFile { path: String::from(path), mode: 0o444, text: Some(text), control: None, bytes: None }
}
