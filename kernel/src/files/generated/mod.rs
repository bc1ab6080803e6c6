//! `/proc` and `/sys`: files whose contents are made when they are read.
//!
//! # How do I add a file?
//!
//! It goes to one of two lists of [`observe`](crate::observe):
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
mod groups;
mod link;
mod mounts;
mod process;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use quire::limits::FRAME_SIZE;

use super::directory_file::DirectoryFile;
use super::node::{Attributes, Directory, FsInfo, Node};
use super::open::{File, Opening};
use crate::errno::Errno;
use crate::observe::{MachineFile, ProcessFile};

pub use folder::Folder;
pub use groups::{group_root, write_group};
pub use mounts::{add as add_mounts, mountinfo, mounts};

/// The magic numbers of `statfs(2)`.
const PROC_MAGIC: u64 = 0x9fa0;
const SYSFS_MAGIC: u64 = 0x6265_6572;
const CGROUP_MAGIC: u64 = 0x6367_7270;

/// What all nodes of one of these file systems have in common.
#[derive(Clone, Copy)]
pub struct Generated {
    /// Its number.
    pub fs: u64,
    magic: u64,
}

impl Generated {
    fn info(self) -> FsInfo {
        FsInfo {
            magic: self.magic,
            page: FRAME_SIZE,
            blocks: 0,
            free: 0,
            nodes: 0,
            free_nodes: 0,
            fs: self.fs,
        }
    }
}

/// A folder of these file systems.
trait FolderNode: Directory + Any + Send + Sync {
    /// The file system that it belongs to.
    fn fs(&self) -> Generated;

    /// What `stat` shows.
    fn stat(&self) -> Attributes;
}

impl<F: FolderNode> Node for F {
    fn attributes(&self) -> Attributes {
        self.stat()
    }

    fn open(self: Arc<Self>, opening: &Opening<'_>) -> Result<Box<dyn File>, Errno> {
        Ok(Box::new(DirectoryFile::new(opening.place.clone())))
    }

    fn directory(&self) -> Result<&dyn Directory, Errno> {
        Ok(self)
    }

    fn fs_info(&self) -> FsInfo {
        self.fs().info()
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
            Some((folder, name)) => (tree.create_folders(folder)?, name),
            None => (tree.clone(), path),
        };
        let node: Arc<dyn Node> = Arc::new(file::MachineNode::new(tree.fs(), file));
        folder.put(name, node)
    }
}
