//! Finds the kernel's tracepoints: their numbers and where their fields are.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use nix::mount::{MsFlags, mount, umount};

use super::RecordError;

const MOUNT_POINT: &str = "/sys/kernel/tracing";
const DEBUG_MOUNT_POINT: &str = "/sys/kernel/debug/tracing";

/// A mounted tracefs. Unmounted again on drop if this process mounted it: perf events don't need it once they are open.
pub(super) struct Tracefs {
    root: PathBuf,
    mounted_here: bool,
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
    /// Finds tracefs, or mounts it where it belongs.
    pub(super) fn find() -> Result<Tracefs, RecordError> {
        for root in [MOUNT_POINT, DEBUG_MOUNT_POINT] {
            if Path::new(root).join("events").is_dir() {
                return Ok(Tracefs { root: root.into(), mounted_here: false });
            }
        }
        let none: Option<&str> = None;
        mount(Some("tracefs"), MOUNT_POINT, Some("tracefs"), MsFlags::empty(), none)
            .map_err(|errno| RecordError::Tracefs { source: errno.into() })?;
        Ok(Tracefs { root: MOUNT_POINT.into(), mounted_here: true })
    }

    /// Reads one tracepoint's description.
    pub(super) fn tracepoint(&self, name: &str) -> Result<Tracepoint, RecordError> {
        let directory = self.root.join("events").join(name);
        let read = |file: &str| {
            fs::read_to_string(directory.join(file)).map_err(|source| match source.kind() {
                io::ErrorKind::NotFound => RecordError::NoTracepoint { name: name.to_owned() },
                _ => RecordError::Tracefs { source },
            })
        };
        let id = read("id")?;
        let id = id.trim().parse().map_err(|_| RecordError::NoTracepoint { name: name.to_owned() })?;
        Ok(Tracepoint { id, fields: parse_format(&read("format")?) })
    }
}

impl Drop for Tracefs {
    fn drop(&mut self) {
        if self.mounted_here {
            // It stays mounted if somebody else has begun to use it; that is no error of the recording.
            let _ = umount(&self.root);
        }
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
