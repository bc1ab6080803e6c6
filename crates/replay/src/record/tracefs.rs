//! Finds the kernel's tracepoints: their numbers and where their fields are.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, open, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use super::RecordError;

/// The mount point of the kernel's documentation, and the one below a mounted debugfs.
const MOUNT_POINTS: [&str; 2] = ["/sys/kernel/tracing/events", "/sys/kernel/debug/tracing/events"];

/// The directory of all tracepoints.
pub(super) struct Tracefs {
    /// Keeps the file system alive: a mount without a place ends with its last descriptor, and one with a
    /// place cannot be unmounted while this is open.
    events: OwnedFd,
    /// The mount without a place, where this process made one.
    _mount: Option<OwnedFd>,
}

/// A tracepoint: its number and its fields.
#[derive(Clone, Debug)]
pub(super) struct Tracepoint {
    pub(super) id: u64,
    fields: HashMap<String, Field>,
}

/// Where a field lies in a tracepoint's raw data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) offset: usize,
    pub(super) size: usize,
}

impl Tracefs {
    /// Finds a mounted tracefs, or makes a mount that only this process sees. A mount at the usual place
    /// would have to be unmounted again, when another recorder may just have found it.
    pub(super) fn find() -> Result<Tracefs, RecordError> {
        let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mounted = MOUNT_POINTS.iter().find_map(|path| open(*path, directory, Mode::empty()).ok());
        if let Some(events) = mounted {
            return Ok(Tracefs { events, _mount: None });
        }
        let mount = || {
            let context = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_create(&context)?;
            let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
            let events = openat(&mount, "events", directory, Mode::empty())?;
            Ok(Tracefs { events, _mount: Some(mount) })
        };
        mount().map_err(|errno: rustix::io::Errno| RecordError::Tracefs { source: errno.into() })
    }

    /// Reads one tracepoint's description.
    pub(super) fn tracepoint(&self, name: &str) -> Result<Tracepoint, RecordError> {
        let no_tracepoint = || RecordError::NoTracepoint { name: name.to_owned() };
        let read = |file: &str| {
            self.read(&format!("{name}/{file}")).map_err(|source| match source.kind() {
                io::ErrorKind::NotFound => no_tracepoint(),
                _ => RecordError::Tracefs { source },
            })
        };
        let id = read("id")?.trim().parse().map_err(|_| no_tracepoint())?;
        Ok(Tracepoint { id, fields: parse_format(&read("format")?) })
    }

    fn read(&self, path: &str) -> io::Result<String> {
        let file = openat(&self.events, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        io::read_to_string(File::from(file))
    }
}

impl Tracepoint {
    /// The field of this name, of up to eight bytes (or the first of an array).
    pub(super) fn field(&self, name: &str) -> Result<Field, RecordError> {
        self.fields
            .get(name)
            .copied()
            .ok_or_else(|| RecordError::NoTracepoint { name: format!("field {name}") })
    }
}

impl Field {
    /// The field's value in a tracepoint's raw data, without sign extension.
    pub(super) fn read(self, data: &[u8]) -> Option<u64> {
        let bytes = data.get(self.offset..self.offset + self.size.min(8))?;
        let mut value = [0; 8];
        value[..bytes.len()].copy_from_slice(bytes);
        Some(u64::from_le_bytes(value))
    }

    /// The element of an array of 8-byte words.
    pub(super) fn word(self, index: usize) -> Field {
        Field { offset: self.offset + index * 8, size: 8 }
    }
}

/// Lines of tab-separated parts such as `field:unsigned long address; offset:8; size:8; signed:0;`.
pub(super) fn parse_format(format: &str) -> HashMap<String, Field> {
    format.lines().filter_map(parse_field).collect()
}

fn parse_field(line: &str) -> Option<(String, Field)> {
    let mut parts = line.trim().split(';').map(str::trim);
    let declaration = parts.next()?.strip_prefix("field:")?;
    let offset = parts.next()?.strip_prefix("offset:")?.parse().ok()?;
    let size = parts.next()?.strip_prefix("size:")?.parse().ok()?;
    let name = declaration.split_whitespace().next_back()?;
    let name = name.split('[').next()?.trim_start_matches('*');
    Some((name.to_owned(), Field { offset, size }))
}

#[cfg(test)]
mod tests;
