//! `/proc` and `/sys`: files whose contents are made when they are read.
//!
//! # How do I add a file?
//!
//! The caller of [`mount::start`](super::mount::start) passes two lists:
//!
//! - [`MachineFile`]s, by path: `/proc/meminfo`, `/sys/kernel/mm/…`. Directories on the way are made.
//! - [`ProcessFile`]s, which stand in the folder of each process, `/proc/PID` and `/proc/PID/task/TID`.
//!
//! Here are made: the folders of processes, their links `cwd`, `exe` and `root`, and `fd`; `self`, `thread-self`.
//!
//! A text is made anew by each read that starts at offset 0, and later reads go on in it. A write is passed on
//! whole; its text is at most a page.

mod descriptors;
mod file;
mod folder;
mod link;
mod mounts;
mod process;

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::{self, Write};

use super::node::{FsInfo, Node};
use crate::errno::Errno;
use crate::task::process::Process;

pub use folder::Folder;
pub use mounts::add as add_mounts;

/// Writes the text of a file.
pub type Writer = Box<dyn Fn(&mut dyn Write) -> Result<(), Errno> + Send + Sync>;
/// Does what a text that is written to a file asks for.
pub type Control = Box<dyn Fn(&str) -> Result<(), Errno> + Send + Sync>;
/// Reads bytes from an offset; returns how many.
pub type Bytes = fn(u64, &mut [u8]) -> Result<usize, Errno>;

/// A file about the machine.
pub struct MachineFile {
    /// Its path.
    pub path: String,
    /// The permissions.
    pub mode: u32,
    /// Its text, made anew for each reader.
    pub text: Option<Writer>,
    /// What a write does.
    pub control: Option<Control>,
    /// For files of words: reads at an offset, instead of `text`.
    pub bytes: Option<Bytes>,
}

/// What stands in a file of a process's folder.
pub enum ProcessContent {
    /// A text, made anew for each reader.
    Text(fn(&Arc<Process>, &mut dyn Write) -> fmt::Result),
    /// Bytes, likewise.
    Whole(fn(&Arc<Process>) -> Result<Vec<u8>, Errno>),
    /// Bytes that are read at an offset.
    At(fn(&Arc<Process>, u64, &mut [u8]) -> Result<usize, Errno>),
    /// Nothing can be read.
    Nothing,
}

/// A file in the folder of each process, `/proc/PID`.
pub struct ProcessFile {
    /// Its name.
    pub name: &'static str,
    /// The permissions.
    pub mode: u32,
    /// What stands in it.
    pub content: ProcessContent,
    /// What a write does.
    pub control: Option<fn(&Arc<Process>, &str) -> Result<(), Errno>>,
}

/// The magic numbers of `statfs(2)`.
const PROC_MAGIC: u64 = 0x9fa0;
const SYSFS_MAGIC: u64 = 0x6265_6572;

/// What all nodes of one of these file systems have in common.
#[derive(Clone, Copy)]
pub struct Generated {
    /// Its number.
    pub fs: u64,
    magic: u64,
}

impl Generated {
    fn info(self) -> FsInfo {
        FsInfo { magic: self.magic, blocks: 0, free: 0, nodes: 0, fs: self.fs }
    }
}

/// The two trees.
pub struct Trees {
    /// That of `/proc`.
    pub proc: Arc<Folder>,
    /// That of `/sys`.
    pub sys: Arc<Folder>,
}

impl Trees {
    /// Makes them, with these numbers of their file systems.
    pub fn new(
        (proc, sys): (u64, u64),
        machine: Vec<MachineFile>,
        process: &'static [ProcessFile],
    ) -> Result<Self, Errno> {
        let proc = Generated { fs: proc, magic: PROC_MAGIC };
        let sys = Generated { fs: sys, magic: SYSFS_MAGIC };
        let trees = Self { proc: Folder::of_processes(proc, process), sys: Folder::new(sys) };
        for file in machine {
            trees.add(file)?;
        }
        Ok(trees)
    }

    fn add(&self, file: MachineFile) -> Result<(), Errno> {
        let path = file.path.clone();
        let (tree, path) = match (path.strip_prefix("/proc/"), path.strip_prefix("/sys/")) {
            (Some(path), _) => (&self.proc, path),
            (_, Some(path)) => (&self.sys, path),
            _ => return Err(Errno::EINVAL),
        };
        let (folder, name) = match path.rsplit_once('/') {
            Some((folder, name)) => (tree.folder(folder)?, name),
            None => (tree.clone(), path),
        };
        let node: Arc<dyn Node> = Arc::new(file::MachineNode::new(tree.kind(), file));
        folder.put(name, node)
    }
}
