//! The name of a core dump, which `/proc/sys/kernel/core_pattern` says.

use alloc::format;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use crate::cpu::area;
use crate::errno::Errno;
use crate::files::walk::PATH_BYTES;
use crate::memory::list;
use crate::observe::{SETTINGS, VERSION};
use crate::task::credentials::REAL;
use crate::task::process::Name;
use crate::task::signal::info::SigInfo;
use crate::task::thread::Task;
use crate::time::{self, SECOND};

/// The longest pattern, with the zero byte at its end in Linux (`CORENAME_MAX_SIZE`).
const BYTES: usize = 128;

/// A pattern.
pub struct Pattern {
    bytes: [u8; BYTES],
    len: usize,
}

impl Pattern {
    /// The one with which the machine starts.
    pub const fn first() -> Self {
        let mut bytes = [0; BYTES];
        let [c, o, r, e] = *b"core";
        (bytes[0], bytes[1], bytes[2], bytes[3]) = (c, o, r, e);
        Self { bytes, len: 4 }
    }

    /// Its text.
    pub fn text(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Replaces it, by a line or a part of one. What is too long is cut off.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] for one that names a program to be started.
    pub fn set(&mut self, text: &str) -> Result<(), Errno> {
        let line = text.split('\n').next().unwrap_or_default().as_bytes();
        if line.first() == Some(&b'|') {
            return Err(Errno::EINVAL);
        }
        self.len = line.len().min(BYTES - 1);
        self.bytes[..self.len].copy_from_slice(&line[..self.len]);
        Ok(())
    }
}

/// The name of the running task's dump.
///
/// # Errors
/// [`Errno::ENOMEM`], [`Errno::ENAMETOOLONG`].
pub fn name(task: &Task, info: &SigInfo, limit: u64) -> Result<Vec<u8>, Errno> {
    let pattern = list::collect(SETTINGS.core_pattern.lock().text().iter().copied())?;
    let mut name = Vec::new();
    let mut has_number = false;
    let mut rest = pattern.iter();
    while let Some(&byte) = rest.next() {
        if byte != b'%' {
            list::append(&mut name, [byte])?;
            continue;
        }
        let Some(&kind) = rest.next() else { break };
        has_number |= kind == b'p';
        list::append(&mut name, part(task, info, limit, kind))?;
    }
    if !has_number && SETTINGS.core_uses_pid.load(Ordering::Relaxed) != 0 {
        list::append(&mut name, format!(".{}", task.process.id).into_bytes())?;
    }
    if name.len() < PATH_BYTES { Ok(name) } else { Err(Errno::ENAMETOOLONG) }
}

/// What a letter after `%` stands for.
fn part(task: &Task, info: &SigInfo, limit: u64, kind: u8) -> Vec<u8> {
    let process = &task.process;
    let number = |number: u64| format!("{number}").into_bytes();
    match kind {
        b'%' => b"%".to_vec(),
        b'p' | b'P' => number(process.id.into()),
        b'i' | b'I' => number(task.id().into()),
        b'u' => number(process.credentials().users[REAL].into()),
        b'g' => number(process.credentials().groups[REAL].into()),
        b'd' => number(process.account.is_dumpable.load(Ordering::Relaxed).into()),
        b's' => number(info.signal.into()),
        b't' => number(time::realtime_ns() / SECOND),
        b'h' => VERSION.node.as_bytes().to_vec(),
        b'e' => without_slashes(text_of(&task.name())),
        b'f' => {
            let path = process.identity.lock().executable.clone();
            without_slashes(path.rsplit(|&byte| byte == b'/').next().unwrap_or_default())
        }
        b'E' => without_slashes(&process.identity.lock().executable),
        b'c' => number(limit),
        b'C' => number(area::cpu_id().0.into()),
        _ => Vec::new(),
    }
}

fn text_of(name: &Name) -> &[u8] {
    name.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// Text that a program has chosen leads to no other directory.
fn without_slashes(text: &[u8]) -> Vec<u8> {
    match text {
        b"." => b"!".to_vec(),
        b".." => b"!.".to_vec(),
        text => text.iter().map(|&byte| if byte == b'/' { b'!' } else { byte }).collect(),
    }
}
