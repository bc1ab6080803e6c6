//! `/proc` and `/sys`: files whose contents are made when they are read.
//!
//! # How do I add a file?
//!
//! It goes to one of two lists of [`observe`](crate::observe):
//!
//! - [`MachineFile`]s, by path: `/proc/meminfo`, `/sys/kernel/mm/…`. Directories on the way are made.
//! - [`ProcessFile`]s, which stand in the folder of each process, `/proc/PID` and `/proc/PID/task/TID`.
//!
//! Here are made: the folders of processes, their links `cwd`, `exe` and `root`, `fd` and `map_files`; `self`, `thread-self`.
//!
//! A text is made anew by each read that starts at offset 0, and later reads go on in it. A write is passed on
//! whole; its text is at most a page.

mod descriptors;
mod file;
mod folder;
mod groups;
mod link;
mod mapped;
mod mounts;
mod process;

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::any::Any;
use core::sync::atomic::{AtomicBool, Ordering};

use quire::limits::FRAME_SIZE;

use super::directory_file::DirectoryFile;
use super::node::{Attributes, Directory, FsInfo, Node};
use super::open::{File, Opening};
use crate::errno::Errno;
use crate::memory::manager;
use crate::observe::{self, MachineFile};
use crate::task::sleep_lock::SleepLock;

pub use folder::Folder;
pub use groups::{group_of, group_root, write_group};
pub use mounts::{mountinfo, mounts};

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

/// A tree of files about the machine. Its nodes are made when a program first looks into it: many programs never do, and
/// the first program starts earlier.
pub struct Tree {
    /// Where its paths begin, with a `/` at both ends.
    prefix: &'static str,
    is_made: AtomicBool,
    making: SleepLock<()>,
}

impl Tree {
    const fn of(prefix: &'static str) -> Self {
        Self { prefix, is_made: AtomicBool::new(false), making: SleepLock::new(()) }
    }

    /// The root of `/proc`, with this number of its file system.
    pub fn proc(fs: u64) -> Arc<Folder> {
        let fs = Generated { fs, magic: PROC_MAGIC };
        Folder::of_processes(fs, Self::of("/proc/"), observe::process_files())
    }

    /// The root of `/sys`, with this number of its file system.
    pub fn sys(fs: u64) -> Arc<Folder> {
        Folder::root(Generated { fs, magic: SYSFS_MAGIC }, Self::of("/sys/"))
    }

    /// Makes the nodes below `root`, once.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`] while the heap's reserve is short: then nothing is made.
    fn make(&self, root: &Folder) -> Result<(), Errno> {
        if self.is_made.load(Ordering::Acquire) {
            return Ok(());
        }
        let _making = self.making.lock();
        if self.is_made.load(Ordering::Acquire) {
            return Ok(());
        }
        if manager::is_heap_short() {
            return Err(Errno::ENOMEM);
        }
        let mut add = |file: MachineFile| {
            if file.path.starts_with(self.prefix) {
                self.add(root, file).expect("no two files have one path");
            }
        };
        observe::machine_files(&mut add);
        mounts::add(&mut add);
        self.is_made.store(true, Ordering::Release);
        Ok(())
    }

    fn add(&self, root: &Folder, file: MachineFile) -> Result<(), Errno> {
        let path = file.path.clone();
        let path = path.strip_prefix(self.prefix).ok_or(Errno::EINVAL)?;
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let folder = root.create_folders(folder)?;
        let node: Arc<dyn Node> = Arc::new(file::MachineNode::new(root.fs(), file));
        folder.as_deref().unwrap_or(root).put(name, node)
    }
}
