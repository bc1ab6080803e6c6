//! Which file systems there are, for `df` and `mount`.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::{self, Write};

use crate::errno::Errno;
use crate::files::dentry::Dentry;
use crate::files::mounted;
use crate::files::mounts::{self as table, Mounted};
use crate::observe::{MachineFile, Writer};

/// Writes `/proc/PID/mounts`.
///
/// # Errors
/// Those of the writer.
pub fn mounts(out: &mut dyn Write) -> fmt::Result {
    table::all().try_for_each(|mounted| {
        let Mounted { source, kind, options, root, .. } = &*mounted;
        writeln!(
            out,
            "{source} {} {kind} {},relatime{options} 0 0",
            path(root)?.escape_ascii(),
            mounted.rights()
        )
    })
}

/// Writes `/proc/PID/mountinfo`. The root is its own parent.
///
/// # Errors
/// Those of the writer.
pub fn mountinfo(out: &mut dyn Write) -> fmt::Result {
    for mounted in table::all() {
        let Mounted { number, source, kind, options, root, .. } = &*mounted;
        let above = |other: &Arc<Mounted>| root.parent().is_some_and(|place| place.is_below(&other.root));
        let parent = table::all().filter(above).last().map_or(1, |other| other.number);
        let (at, fs) = (path(root)?, root.node().attributes().fs);
        let at = at.escape_ascii();
        let (device, rights) = (format!("{}:{}", fs >> 8, fs & 0xff), mounted.rights());
        writeln!(
            out,
            "{number} {parent} {device} / {at} {rights},relatime - {kind} {source} {rights}{options}"
        )?;
    }
    Ok(())
}

/// Without memory for it the text ends with an error, as for want of memory for itself.
fn path(place: &Arc<Dentry>) -> Result<Vec<u8>, fmt::Error> {
    place.path().map_err(|_| fmt::Error)
}

/// Adds the files that show them.
pub fn add(files: &mut Vec<MachineFile>) {
    files.push(text("/proc/mounts", mounts));
    files.push(text("/proc/filesystems", |out| {
        ["tmpfs", "proc", "sysfs", "cgroup2", "hugetlbfs"]
            .iter()
            .try_for_each(|kind| writeln!(out, "nodev\t{kind}"))?;
        writeln!(out, "\text2")
    }));
    files.push(text("/proc/diskstats", mounted::statistics));
}

fn text(path: &str, write: fn(&mut dyn Write) -> core::fmt::Result) -> MachineFile {
    let text: Writer = Box::new(move |out| write(out).map_err(|_| Errno::ENOMEM));
    MachineFile { path: String::from(path), mode: 0o444, text: Some(text), control: None, bytes: None }
}
