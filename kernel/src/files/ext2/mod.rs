//! The file system ext2 on a disk.
//!
//! ```text
//! Dentry ──► Inode ──► Body ──► file of the pager `Storage` ──► blocks of the disk
//!              └─► Core: bitmaps, inodes, directories ──► Buffers ──► blocks of the disk
//! ```
//!
//! Contents of files are pages of Quire's cache, which the disk reads and writes without a copy. All other blocks are
//! in [`buffers`]. Blocks are allocated when a program writes, so that a full disk is an error of `write`; stores to
//! a hole through a mapping get them when they are written back.
//!
//! # Why is this no crate?
//!
//! `fatfs` needs the standard library or one that no longer builds, `efs` and `lwext4` are under the GPL, `rsext4` has
//! 47,000 lines, and `ext4plus` frees a file that is open when its name goes, hides where blocks are, and reads the
//! bitmap byte by byte for each block: 1,800 reads for a page after 80 MB.
//!
//! # Locks
//!
//! [`Inode::io`], then [`Ext2::core`]; both may be held while a task waits for the disk. Verbs of Quire about a file
//! are called with neither, because they call the pager, which takes them.

mod buffers;
mod contents;
mod core;
mod directory;
mod entries;
mod inode;
mod layout;

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::sync::Mutex;
use quire::limits::FRAME_SIZE;

use self::buffers::Buffers;
use self::core::Core;
use self::layout::{Geometry, ROOT, SUPERBLOCK, put_u16, put_u32, superblock, u16_at, u32_at};
use super::node::FsInfo;
use crate::device::disk::{self, SECTOR};
use crate::errno::Errno;
use crate::memory::list;
use crate::task::sleep_lock::{SleepGuard, SleepLock};

pub use inode::Inode;

/// In the state of the superblock: all was written when the file system was unmounted.
const CLEAN: u16 = 1;
/// More inodes than this are not kept without need.
const MOST_INODES: usize = 256;

/// A mounted file system.
pub struct Ext2 {
    /// The number of the disk.
    pub disk: usize,
    pub read_only: bool,
    geometry: Geometry,
    core: SleepLock<Core>,
    inodes: Mutex<BTreeMap<u32, Arc<Inode>>>,
}

impl Ext2 {
    /// The file system on a disk.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if there is none that this code can use; [`Errno::EIO`].
    pub fn load(index: usize, read_only: bool) -> Result<Arc<Self>, Errno> {
        let disk = disk::all().get(index).ok_or(Errno::ENXIO)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(SUPERBLOCK).map_err(|_| Errno::ENOMEM)?;
        bytes.resize(SUPERBLOCK, 0);
        disk.read((SUPERBLOCK / SECTOR) as u64, &mut bytes)?;
        let geometry = Geometry::read(&bytes, disk.sectors() * SECTOR as u64)?;
        let core = SleepLock::new(Core { geometry, buffers: Buffers::new(disk, geometry) });
        let read_only = read_only || disk.is_read_only();
        let fs = Arc::new(Self { disk: index, read_only, geometry, core, inodes: Mutex::default() });
        if !read_only {
            fs.set_state(|state| state & !CLEAN)?;
        }
        Ok(fs)
    }

    /// The root directory.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn root(self: &Arc<Self>) -> Result<Arc<Inode>, Errno> {
        self.inode(&mut self.core.lock(), ROOT)
    }

    /// An inode that is in memory.
    pub fn cached(&self, number: u32) -> Option<Arc<Inode>> {
        self.inodes.lock().get(&number).cloned()
    }

    /// An inode that an entry names. The caller holds the lock, so it cannot be freed meanwhile.
    fn inode(self: &Arc<Self>, core: &mut Core, number: u32) -> Result<Arc<Inode>, Errno> {
        if let Some(inode) = self.cached(number) {
            return Ok(inode);
        }
        let inode = Inode::load(self, core, number)?;
        Ok(self.inodes.lock().entry(number).or_insert(inode).clone())
    }

    /// The structures, to be changed.
    fn change(&self) -> Result<SleepGuard<'_, Core>, Errno> {
        if self.read_only { Err(Errno::EROFS) } else { Ok(self.core.lock()) }
    }

    /// What `st_dev` is.
    fn number(&self) -> u64 {
        super::stored::device_number(self.disk)
    }

    fn info(&self) -> FsInfo {
        // What nothing uses any more is free.
        let _ = self.collect(false);
        let mut core = self.core.lock();
        let mut field = |at| core.superblock_field(at).map_or(0, u64::from);
        let pages = |blocks: u64| blocks * self.geometry.block_bytes as u64 / FRAME_SIZE;
        let (blocks, free) = (field(superblock::BLOCKS), field(superblock::FREE_BLOCKS));
        FsInfo {
            magic: layout::MAGIC.into(),
            page: FRAME_SIZE,
            blocks: pages(blocks),
            free: pages(free),
            nodes: field(superblock::INODES),
            free_nodes: field(superblock::FREE_INODES),
            fs: self.number(),
        }
    }

    /// Writes everything to the disk.
    ///
    /// # Errors
    /// [`Errno::EIO`]; what could be written is.
    pub fn sync(&self) -> Result<(), Errno> {
        let contents = self.all_inodes().map(|inode| inode.write_back()).fold(Ok(()), Result::and);
        contents.and(self.flush())
    }

    /// All inodes in memory, by number. Needs no memory: when there is none left, this is how some comes free.
    fn all_inodes(&self) -> impl Iterator<Item = Arc<Inode>> {
        let mut from = 0;
        ::core::iter::from_fn(move || {
            let inodes = self.inodes.lock();
            let (&number, inode) = inodes.range(from..).next()?;
            from = number.checked_add(1)?;
            Some(inode.clone())
        })
    }

    /// Writes all but contents of files to the disk, and makes all stay.
    ///
    /// # Errors
    /// [`Errno::EIO`].
    pub fn flush(&self) -> Result<(), Errno> {
        let mut core = self.core.lock();
        if !self.read_only {
            core.buffers.flush()?;
        }
        drop(core);
        disk::all()[self.disk].flush()
    }

    /// Frees the files that have neither name nor user, and with `all`, or when there are many, forgets the other
    /// inodes without user.
    fn collect(&self, all: bool) -> Result<(), Errno> {
        let unused = {
            let inodes = self.inodes.lock();
            let all = all || inodes.len() > MOST_INODES;
            let is_unused =
                |inode: &&Arc<Inode>| Arc::strong_count(inode) == 1 && (all || inode.is_nameless());
            list::collect(inodes.values().filter(is_unused).cloned())?
        };
        let mut outcome = Ok(());
        for inode in unused {
            outcome = inode.settle().and(outcome);
            let mut inodes = self.inodes.lock();
            // The table and this function have it.
            let is_unused = Arc::strong_count(&inode) == 2 && inode.is_settled();
            let removed = is_unused.then(|| inodes.remove(&inode.number));
            drop(inodes);
            drop(removed);
        }
        outcome
    }

    /// Writes everything while the file system is still in its place, so that to unmount it takes little time, and fails
    /// hardly ever after it was taken off.
    ///
    /// # Errors
    /// [`Errno::EBUSY`]: a file is in use; [`Errno::EIO`].
    pub fn prepare_unmount(&self) -> Result<(), Errno> {
        if self.all_inodes().any(|inode| inode.number != ROOT && inode.is_used()) {
            return Err(Errno::EBUSY);
        }
        self.collect(false).and(self.sync())
    }

    /// Writes everything and forgets it. All but the root's inode must be unused.
    ///
    /// # Errors
    /// [`Errno::EBUSY`]: a file is in use; [`Errno::EIO`].
    pub fn unmount(&self) -> Result<(), Errno> {
        // Both: a file that cannot be written keeps neither other files nor their names from the disk.
        self.collect(true).and(self.sync())?;
        if self.inodes.lock().len() > 1 {
            return Err(Errno::EBUSY);
        }
        if !self.read_only {
            self.set_state(|state| state | CLEAN)?;
        }
        self.flush()?;
        let root = self.inodes.lock().pop_first();
        drop(root);
        Ok(())
    }

    /// Forgets all inodes, which refer to the file system. What of their contents could not be written is lost.
    pub fn forget_all(&self) {
        let inodes = ::core::mem::take(&mut *self.inodes.lock());
        drop(inodes);
    }

    /// Does what may need a block. If none is free, frees the files that nothing uses any more, and tries once more. The
    /// caller holds neither lock.
    fn with_space<T>(&self, mut attempt: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
        attempt().or_else(|errno| match errno {
            Errno::ENOSPC => {
                // One of those files may fail, or be mapped, and others be freed.
                let _ = self.collect(false);
                attempt()
            }
            errno => Err(errno),
        })
    }

    fn set_state(&self, change: impl Fn(u16) -> u16) -> Result<(), Errno> {
        let mut core = self.core.lock();
        let bytes = core.superblock()?;
        put_u16(bytes, superblock::STATE, change(u16_at(bytes, superblock::STATE)));
        put_u32(bytes, superblock::WRITTEN, self::core::now());
        Ok(())
    }
}

impl Core {
    fn superblock_field(&mut self, at: usize) -> Result<u32, Errno> {
        let (block, start) = (SUPERBLOCK / self.geometry.block_bytes, SUPERBLOCK % self.geometry.block_bytes);
        Ok(u32_at(self.buffers.read(block as u32)?, start + at))
    }
}
