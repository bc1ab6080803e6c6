//! A file system in memory: names and attributes in the kernel's heap, contents in Quire's page cache.
//!
//! ```text
//! Dentry ──► Inode ─┬─ Directory: name ──► Dentry
//!                   ├─ Body: shmem file, or file of the archive's pager
//!                   └─ symbolic link, pipe, device, socket
//! ```
//!
//! # Locks
//!
//! `TmpFs::tree` is held by each change of names, one at a time. A directory's own lock is held for a moment inside
//! it, to look up or to change its entries. Both are spin locks: nothing below sleeps.

mod body;
mod directory;
mod inode;
mod regular;
mod rename;

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use spin::Mutex;

pub use body::{Body, Contents};
pub use inode::Inode;

use super::dentry::Dentry;
use super::node::{FsInfo, Kind};
use crate::memory::manager::manager;

/// `TMPFS_MAGIC`.
const MAGIC: u64 = 0x0102_1994;

/// One such file system.
pub struct TmpFs {
    number: u64,
    next: AtomicU64,
    tree: Mutex<()>,
}

impl TmpFs {
    /// A new file system with this number, and its root directory.
    pub fn with_root(number: u64, mode: u32) -> Arc<Inode> {
        let fs = Arc::new(Self { number, next: AtomicU64::new(1), tree: Mutex::new(()) });
        Inode::directory(&fs, mode)
    }

    /// The number for a new node.
    fn take_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn info(&self) -> FsInfo {
        let frames = manager().meminfo().frames;
        FsInfo { magic: MAGIC, blocks: frames.total, free: frames.free, nodes: 0, fs: self.number }
    }
}

/// Removes all entries below a directory, so that directories and their entries no longer keep each other alive.
/// Files that are open stay as long as they are open.
pub fn dismantle(root: &Arc<Dentry>) {
    let mut directories = alloc::vec![root.clone()];
    while let Some(directory) = directories.pop() {
        let Some(inode) = Inode::of(directory.node()) else { continue };
        for entry in inode.take_entries() {
            if entry.node().kind() == Kind::Directory {
                directories.push(entry.covered());
            }
        }
    }
}
