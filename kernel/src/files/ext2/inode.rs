//! A node of an ext2 file system: what is stored about a file, and when it comes and goes.

use ::core::any::Any;
use ::core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use crate::sync::Mutex;
use quire::limits::FRAME_SIZE;

use super::Ext2;
use super::core::{Core, now};
use super::layout::*;
use crate::device::disk::{self, Disk};
use crate::errno::Errno;
use crate::files::claim::Claims;
use crate::files::dentry::Dentry;
use crate::files::directory_file::DirectoryFile;
use crate::files::node::{Attributes, Change, Directory, FsInfo, Kind, Node, Target};
use crate::files::open::{File, Opening};
use crate::files::special;
use crate::files::stored::{self, Stored, StoredFile};
use crate::files::tmpfs::{Body, Contents};
use crate::task::sleep_lock::SleepLock;
use crate::time;

const PERMISSIONS: u32 = 0o7777;

/// A node.
pub struct Inode {
    pub fs: Arc<Ext2>,
    pub number: u32,
    kind: Kind,
    pub(super) size: AtomicU64,
    nameless: AtomicBool,
    /// The blocks that were allocated and not written: they are zeroes, whatever the disk has there. The lock is held
    /// while contents are read or written, so that their blocks are not freed meanwhile.
    pub(super) io: SleepLock<BTreeSet<u64>>,
    body: Body,
    claims: Claims,
    /// The places of a directory's entries that are in use.
    pub(super) places: Mutex<BTreeMap<Arc<[u8]>, Weak<Dentry>>>,
}

impl Inode {
    pub(super) fn load(fs: &Arc<Ext2>, core: &mut Core, number: u32) -> Result<Arc<Self>, Errno> {
        let bytes = core.inode(number)?;
        // A number of 16 bits, or else one of 32 bits.
        let device = match u32_at(bytes, inode::BLOCKS) & 0xffff {
            0 => u32_at(bytes, inode::BLOCKS + 4),
            short => short,
        };
        let kind = Kind::of_mode(u16_at(bytes, inode::MODE).into(), device.into()).ok_or(Errno::EIO)?;
        let high = if kind == Kind::Regular { u64::from(u32_at(bytes, inode::SIZE_HIGH)) } else { 0 };
        let size = high << 32 | u64::from(u32_at(bytes, inode::SIZE));
        Ok(Arc::new(Self {
            fs: fs.clone(),
            number,
            kind,
            size: AtomicU64::new(size),
            nameless: AtomicBool::new(false),
            io: SleepLock::default(),
            body: Body::new(Contents::Stored(Stored::Inode { disk: fs.disk, number })),
            claims: Claims::default(),
            places: Mutex::default(),
        }))
    }

    /// A node as one of an ext2 file system.
    pub fn of(node: &Arc<dyn Node>) -> Option<&Inode> {
        let any: &dyn Any = &**node;
        any.downcast_ref()
    }

    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    pub(super) fn set_nameless(&self) {
        self.nameless.store(true, Ordering::Release);
    }

    pub(super) fn is_nameless(&self) -> bool {
        self.nameless.load(Ordering::Acquire)
    }

    pub(super) fn disk(&self) -> &'static Disk {
        &disk::all()[self.fs.disk]
    }

    pub(super) fn blocks_of_size(&self) -> u64 {
        self.size().div_ceil(self.fs.geometry.block_bytes as u64)
    }

    /// Writes the contents to the disk, not the inode.
    pub(super) fn write_back(&self) -> Result<(), Errno> {
        match self.body.opened() {
            Some(file) => Ok(file.sync()?),
            None => Ok(()),
        }
    }

    /// Prepares a node without user to be forgotten: its contents are on the disk, or free if it has no name. One that is
    /// mapped stays as it is.
    pub(super) fn settle(&self) -> Result<(), Errno> {
        if self.is_mapped() {
            return Ok(());
        }
        if self.is_nameless() {
            return self.free();
        }
        self.write_back()?;
        if self.fs.read_only {
            return Ok(());
        }
        // What a write that failed had allocated. One that is under way needs it.
        let Some(_no_write) = self.body.pause_writes() else { return Ok(()) };
        let mut unwritten = self.io.lock();
        if unwritten.is_empty() {
            return Ok(());
        }
        self.fs.core.lock().cut(self.number, self.blocks_of_size())?;
        let end = self.blocks_of_size();
        unwritten.retain(|&block| block < end);
        let zeroes = Vec::from_iter(::core::iter::repeat_n(0, self.fs.geometry.block_bytes));
        while let Some(&block) = unwritten.first() {
            let place = self.fs.core.lock().block_of(self.number, block, None)?.ok_or(Errno::EIO)?;
            self.disk().write(self.fs.geometry.sector(place), &[&zeroes])?;
            unwritten.remove(&block);
        }
        Ok(())
    }

    fn is_mapped(&self) -> bool {
        self.body.opened().is_some_and(|file| !file.is_unmapped())
    }

    /// Whether anything but the table of inodes and the caller uses it.
    pub(super) fn is_used(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) > 2 || self.is_mapped()
    }

    pub(super) fn is_settled(&self) -> bool {
        let file = self.body.opened();
        file.is_none_or(|file| file.is_unmapped() && file.dirty() == 0)
    }

    /// Frees a node that has neither name nor user.
    fn free(&self) -> Result<(), Errno> {
        if let Some(file) = self.body.opened() {
            file.truncate(0)?;
        }
        let mut core = self.fs.change()?;
        if core.has_blocks(self.number, self.kind)? {
            core.cut(self.number, 0)?;
        }
        core.free_attributes(self.number)?;
        // The number may be used again from here on.
        let known = self.fs.inodes.lock().remove(&self.number);
        core.free_inode(self.number, self.kind == Kind::Directory)?;
        drop(core);
        drop(known);
        self.nameless.store(false, Ordering::Release);
        Ok(())
    }
}

impl Node for Inode {
    fn attributes(&self) -> Attributes {
        let mut core = self.fs.core.lock();
        // An inode that cannot be read any more shows as empty.
        let none = [0; inode::BYTES];
        let bytes = core.inode(self.number).unwrap_or(&none);
        let instant = |at| u64::from(u32_at(bytes, at)) * 1_000_000_000;
        let id = |low, high| u32::from(u16_at(bytes, high)) << 16 | u32::from(u16_at(bytes, low));
        let size = if self.kind == Kind::Regular { self.size() } else { u32_at(bytes, inode::SIZE).into() };
        Attributes {
            fs: self.fs.number(),
            number: self.number.into(),
            kind: self.kind,
            mode: u32::from(u16_at(bytes, inode::MODE)) & PERMISSIONS,
            links: u16_at(bytes, inode::LINKS).into(),
            uid: id(inode::UID, inode::UID_HIGH),
            gid: id(inode::GID, inode::GID_HIGH),
            size,
            unit: FRAME_SIZE,
            blocks: u32_at(bytes, inode::SECTORS).into(),
            accessed: instant(inode::ACCESSED),
            modified: instant(inode::MODIFIED),
            changed: instant(inode::CHANGED),
            created: instant(inode::CHANGED),
        }
    }

    fn change(&self, change: &Change) -> Result<(), Errno> {
        let mut core = self.fs.change()?;
        let bytes = core.inode_mut(self.number)?;
        let mode = change.mode_of(u16_at(bytes, inode::MODE).into());
        put_u16(bytes, inode::MODE, (self.kind.mode_bits() | mode & PERMISSIONS) as u16);
        for (id, halves) in [(change.uid, inode::USER), (change.gid, inode::GROUP)] {
            if let Some(id) = id {
                put_id(bytes, halves, id);
            }
        }
        for (time, at) in [(change.accessed, inode::ACCESSED), (change.modified, inode::MODIFIED)] {
            if let Some(time) = time {
                put_u32(bytes, at, (time / 1_000_000_000) as u32);
            }
        }
        put_u32(bytes, inode::CHANGED, now());
        Ok(())
    }

    fn open(self: Arc<Self>, opening: &Opening<'_>) -> Result<Box<dyn File>, Errno> {
        match self.kind {
            Kind::Regular if opening.writes() && self.fs.read_only => Err(Errno::EROFS),
            Kind::Regular => Ok(Box::new(StoredFile::of_inode(self))),
            Kind::Directory => Ok(Box::new(DirectoryFile::new(opening.place.clone()))),
            Kind::Symlink => Err(Errno::ELOOP),
            Kind::CharDevice(number) => special::open(number, opening),
            Kind::BlockDevice(number) => stored::open_disk(number, opening),
            _ => Err(Errno::ENXIO),
        }
    }

    fn truncate(&self, bytes: u64) -> Result<(), Errno> {
        match self.kind {
            Kind::Regular if self.fs.read_only => Err(Errno::EROFS),
            // Quire would pass on only that it failed.
            Kind::Regular if !self.fs.geometry.may_have(bytes) => Err(Errno::EFBIG),
            Kind::Regular => {
                let is_same = bytes == self.size();
                self.body.truncate(bytes)?;
                // Quire passes on nothing then, but it counts as a write.
                let modified = is_same.then(time::realtime_ns);
                if is_same { self.change(&Change { modified, ..Change::default() }) } else { Ok(()) }
            }
            Kind::Directory => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    fn sync(&self) -> Result<(), Errno> {
        self.write_back()?;
        self.fs.flush()
    }

    fn claims(&self) -> Option<&Claims> {
        (self.kind == Kind::Regular).then_some(&self.claims)
    }

    fn directory(&self) -> Result<&dyn Directory, Errno> {
        if self.kind == Kind::Directory { Ok(self) } else { Err(Errno::ENOTDIR) }
    }

    fn target(&self) -> Result<Target, Errno> {
        if self.kind != Kind::Symlink {
            return Err(Errno::EINVAL);
        }
        let mut core = self.fs.core.lock();
        let size = u32_at(core.inode(self.number)?, inode::SIZE) as usize;
        let text = if core.has_blocks(self.number, self.kind)? {
            let block = core.block_of(self.number, 0, None)?.ok_or(Errno::EIO)?;
            core.buffers.read(block)?
        } else {
            &core.inode(self.number)?[inode::BLOCKS..inode::BLOCKS_END]
        };
        Ok(Target::Path(text.get(..size).ok_or(Errno::EIO)?.to_vec()))
    }

    fn fs_info(&self) -> FsInfo {
        self.fs.info()
    }
}

impl Inode {
    /// The contents of a regular file.
    pub fn body(&self) -> &Body {
        &self.body
    }
}
