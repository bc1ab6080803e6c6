//! Which file systems there are, for `df` and `mount`.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::{self, Write};

use crate::errno::Errno;
use crate::files::dentry::Dentry;
use crate::files::mounted;
use crate::files::mounts::{self as table, Mounted};
use crate::observe::{MachineFile, Writer, write_bytes};

/// Writes `/proc/PID/mounts`.
///
/// # Errors
/// Those of the writer.
pub fn mounts(out: &mut dyn Write) -> fmt::Result {
    table::all().try_for_each(|mounted| {
        write_column(out, mounted.source.as_bytes())?;
        out.write_char(' ')?;
        write_column(out, &path(&mounted.root)?)?;
        let (kind, rights, options) = (mounted.kind, mounted.rights(), &mounted.options);
        writeln!(out, " {kind} {rights},relatime{options} 0 0")
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
        let (fs, rights) = (root.node().attributes().fs, mounted.rights());
        write!(out, "{number} {parent} {}:{} / ", fs >> 8, fs & 0xff)?;
        write_column(out, &path(root)?)?;
        write!(out, " {rights},relatime - {kind} ")?;
        write_column(out, source.as_bytes())?;
        writeln!(out, " {rights}{options}")?;
    }
    Ok(())
}

/// Writes a column of a line whose columns end with a space. What would end one stands as `getmntent` reads it: a
/// backslash and three octal digits.
fn write_column(out: &mut dyn Write, column: &[u8]) -> fmt::Result {
    let ends = |byte: &u8| b" \t\n\\#".contains(byte);
    for part in column.split_inclusive(ends) {
        match part.split_last() {
            Some((last, text)) if ends(last) => {
                write_bytes(out, text)?;
                write!(out, "\\{last:03o}")?;
            }
            _ => write_bytes(out, part)?,
        }
    }
    Ok(())
}

/// Without memory for it the text ends with an error, as for want of memory for itself.
fn path(place: &Arc<Dentry>) -> Result<Vec<u8>, fmt::Error> {
    place.path().map_err(|_| fmt::Error)
}

/// Adds the files that show them.
pub fn add(each: &mut dyn FnMut(MachineFile)) {
    each(text("/proc/mounts", mounts));
    each(text("/proc/filesystems", |out| {
        ["tmpfs", "proc", "sysfs", "cgroup2", "hugetlbfs"]
            .iter()
            .try_for_each(|kind| writeln!(out, "nodev\t{kind}"))?;
        writeln!(out, "\text2")
    }));
    each(text("/proc/diskstats", mounted::statistics));
}

fn text(path: &str, write: fn(&mut dyn Write) -> core::fmt::Result) -> MachineFile {
    let text: Writer = Box::new(move |out| write(out).map_err(|_| Errno::ENOMEM));
    MachineFile { path: String::from(path), mode: 0o444, text: Some(text), control: None, bytes: None }
}
