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
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use quire::hugetlb::{HugeFsInfo, HugeSize};
use quire::limits::FRAME_SIZE;
use quire::vm::HugeFs;

pub use body::{Body, Contents};
use directory::{Entries, is_directory};
pub use inode::Inode;

use super::dentry::Dentry;
use super::node::FsInfo;
use crate::errno::Errno;
use crate::memory::list;
use crate::memory::manager::manager;
use crate::memory::platform::Machine;
use crate::sync::Mutex;

/// `TMPFS_MAGIC`.
const MAGIC: u64 = 0x0102_1994;

/// `HUGETLBFS_MAGIC`
const HUGE_MAGIC: u64 = 0x9584_58f6;

/// One such file system.
pub struct TmpFs {
    number: u64,
    next: AtomicU64,
    tree: Mutex<()>,
    /// Its regular files are of huge pages (`hugetlbfs`).
    huge: Option<(HugeSize, HugeFs<'static, Machine>)>,
}

impl TmpFs {
    /// A new file system with this number, and its root directory.
    pub fn with_root(number: u64, mode: u32) -> Arc<Inode> {
        Self::make(number, mode, None)
    }

    /// One whose regular files are of huge pages, within the limits of `fs`, and its root directory.
    pub fn of_huge_pages(number: u64, mode: u32, size: HugeSize, fs: HugeFs<'static, Machine>) -> Arc<Inode> {
        Self::make(number, mode, Some((size, fs)))
    }

    fn make(number: u64, mode: u32, huge: Option<(HugeSize, HugeFs<'static, Machine>)>) -> Arc<Inode> {
        let fs = Arc::new(Self { number, next: AtomicU64::new(1), tree: Mutex::new(()), huge });
        Inode::directory(&fs, mode)
    }

    /// The contents of a new regular file.
    fn new_body(&self) -> Result<Body, Errno> {
        match &self.huge {
            None => Ok(Body::new(Contents::Memory)),
            Some((size, fs)) => Ok(Body::of(Contents::Huge(*size), fs.create(0)?)),
        }
    }

    /// The unit in which files are best read.
    fn unit(&self) -> u64 {
        self.huge.as_ref().map_or(FRAME_SIZE, |(size, _)| size.bytes())
    }

    /// The number for a new node.
    fn take_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn info(&self) -> FsInfo {
        let (magic, blocks, free) = match &self.huge {
            None => {
                let frames = manager().meminfo().frames;
                (MAGIC, frames.total, frames.free)
            }
            Some((_, fs)) => match fs.info() {
                // Without a limit, Linux shows no numbers.
                HugeFsInfo { max: u64::MAX, .. } => (HUGE_MAGIC, 0, 0),
                HugeFsInfo { max, used, .. } => (HUGE_MAGIC, max, max.saturating_sub(used)),
            },
        };
        FsInfo { magic, page: self.unit(), blocks, free, nodes: 0, free_nodes: 0, fs: self.number }
    }
}

/// Fails if anything but the tree itself refers to an entry at or below `root`, to which the caller knows `expected`
/// references.
///
/// # Errors
/// [`Errno::EBUSY`], [`Errno::ENOMEM`].
pub fn check_unused(root: &Arc<Dentry>, expected: usize) -> Result<(), Errno> {
    let mut directories = alloc::vec![(root.clone(), expected)];
    while let Some((entry, expected)) = directories.pop() {
        let entries = Inode::of(entry.node()).and_then(|inode| inode.entries().ok());
        let below = entries.map_or(Ok(Vec::new()), Entries::all)?;
        // Each entry refers to the directory that it is in. This list is one more reference.
        if Arc::strong_count(&entry) > expected + below.len() + 1 || entry.is_mount_point() && expected == 1 {
            return Err(Errno::EBUSY);
        }
        // The directory and the list below refer to an entry.
        list::append(&mut directories, below.into_iter().map(|entry| (entry, 1)))?;
    }
    Ok(())
}

/// Removes all entries below a directory, so that directories and their entries no longer keep each other alive.
/// Files that are open stay as long as they are open.
pub fn dismantle(root: &Arc<Dentry>) {
    let mut at = root.clone();
    loop {
        // An entry that was taken still knows the directory above, which has no other reference maybe.
        at = match Inode::of(at.node()).and_then(Inode::take_entry) {
            Some(entry) if is_directory(&entry) => entry,
            Some(_) => at,
            None if Arc::ptr_eq(&at, root) => return,
            None => at.parent().expect("below the root"),
        };
    }
}
