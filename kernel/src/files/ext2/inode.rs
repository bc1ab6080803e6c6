//! A node of an ext2 file system, and the way between its pages and the disk.

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
use crate::device::disk::{self, Disk, PARTS, SECTOR};
use crate::errno::Errno;
use crate::files::dentry::Dentry;
use crate::files::directory_file::DirectoryFile;
use crate::files::node::{Attributes, Change, Directory, FsInfo, Kind, Node, Target};
use crate::files::open::{File, Opening};
use crate::files::special;
use crate::files::stored::{self, Stored, StoredFile};
use crate::files::tmpfs::{Body, Contents};
use crate::task::sleep_lock::SleepLock;

const PAGE: usize = FRAME_SIZE as usize;
const PERMISSIONS: u32 = 0o7777;

/// A node.
pub struct Inode {
    pub fs: Arc<Ext2>,
    pub number: u32,
    kind: Kind,
    size: AtomicU64,
    nameless: AtomicBool,
    /// The blocks that were allocated and not written: they are zeroes, whatever the disk has there. The lock is held
    /// while contents are read or written, so that their blocks are not freed meanwhile.
    io: SleepLock<BTreeSet<u64>>,
    body: Body,
    /// The places of a directory's entries that are in use.
    pub(super) places: Mutex<BTreeMap<Arc<[u8]>, Weak<Dentry>>>,
}

impl Inode {
    pub(super) fn load(fs: &Arc<Ext2>, core: &mut Core, number: u32) -> Result<Arc<Self>, Errno> {
        let bytes = core.inode(number)?;
        let device = u32_at(bytes, inode::BLOCKS);
        let device = special::number(u64::from(device >> 8 & 0xff), u64::from(device & 0xff));
        let kind = Kind::of_mode(u16_at(bytes, inode::MODE).into(), device).ok_or(Errno::EIO)?;
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

    fn disk(&self) -> &'static Disk {
        &disk::all()[self.fs.disk]
    }

    fn blocks_of_size(&self) -> u64 {
        self.size().div_ceil(self.fs.geometry.block_bytes as u64)
    }

    /// Writes the contents to the disk, not the inode.
    pub(super) fn write_back(&self) -> Result<(), Errno> {
        match self.body.opened() {
            Some(file) => Ok(file.sync()?),
            None => Ok(()),
        }
    }

    /// Writes contents and structures to the disk.
    pub fn sync(&self) -> Result<(), Errno> {
        self.write_back()?;
        self.fs.flush()
    }

    /// Prepares a node without user to be forgotten: its contents are on the disk, or free if it has no name.
    pub(super) fn settle(&self) -> Result<(), Errno> {
        if self.body.opened().is_some_and(|file| !file.is_unmapped()) {
            return Err(Errno::EBUSY);
        }
        if self.is_nameless() {
            return self.free();
        }
        self.write_back()?;
        if self.fs.read_only {
            return Ok(());
        }
        // What a write that failed had allocated.
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
        let has_blocks = match self.kind {
            Kind::Regular | Kind::Directory => true,
            Kind::Symlink => u32_at(core.inode(self.number)?, inode::SECTORS) != 0,
            _ => false,
        };
        if has_blocks {
            core.cut(self.number, 0)?;
        }
        // The number may be used again from here on.
        let known = self.fs.inodes.lock().remove(&self.number);
        core.free_inode(self.number, self.kind == Kind::Directory)?;
        drop(core);
        drop(known);
        self.nameless.store(false, Ordering::Release);
        Ok(())
    }

    /// Reads a page of the contents.
    ///
    /// # Errors
    /// [`Errno::EIO`].
    pub fn read_page(&self, page: u64, bytes: &mut [u8; PAGE]) -> Result<(), Errno> {
        let (each, sectors) = self.units();
        let per_page = (PAGE / each) as u64;
        let unwritten = self.io.lock();
        // The next piece of the page, and where on the disk it ends.
        let mut pending: Option<(u64, ::core::ops::Range<usize>)> = None;
        for at in 0..per_page {
            let index = page * per_page + at;
            let inside = at as usize * each..(at as usize + 1) * each;
            let block = if index < self.blocks_of_size() && !unwritten.contains(&index) {
                self.fs.core.lock().block_of(self.number, index, None)?
            } else {
                None
            };
            let Some(block) = block else {
                bytes[inside].fill(0);
                continue;
            };
            let sector = self.fs.geometry.sector(block);
            match &mut pending {
                Some((start, part))
                    if part.end == inside.start
                        && *start + (part.len() / each) as u64 * sectors == sector =>
                {
                    part.end = inside.end;
                }
                _ => {
                    if let Some((start, part)) = pending.replace((sector, inside)) {
                        self.disk().read(start, &mut bytes[part])?;
                    }
                }
            }
        }
        if let Some((start, part)) = pending {
            self.disk().read(start, &mut bytes[part])?;
        }
        // Behind the end of the file are zeroes.
        let end = self.size().saturating_sub(page * FRAME_SIZE).min(FRAME_SIZE) as usize;
        bytes[end..].fill(0);
        Ok(())
    }

    /// The bytes and sectors of a block.
    fn units(&self) -> (usize, u64) {
        let bytes = self.fs.geometry.block_bytes;
        (bytes, (bytes / SECTOR) as u64)
    }

    /// Writes pages of the contents that follow each other. Holes among them get blocks.
    ///
    /// # Errors
    /// [`Errno::ENOSPC`], [`Errno::EIO`].
    pub fn write_pages(&self, first: u64, pages: &[&[u8; PAGE]]) -> Result<(), Errno> {
        let (each, sectors) = self.units();
        let mut unwritten = self.io.lock();
        let start = first * (PAGE / each) as u64;
        // The last page of the file may have more than the file.
        let size = self.size();
        let last = (size / FRAME_SIZE).checked_sub(first).filter(|_| !size.is_multiple_of(FRAME_SIZE));
        let last = last.and_then(|last| pages.get(last as usize).map(|page| (last as usize, page)));
        let mut copy = Vec::new();
        if let Some((_, page)) = last {
            copy.try_reserve_exact(PAGE).map_err(|_| Errno::ENOMEM)?;
            copy.extend_from_slice(*page);
            copy[(size % FRAME_SIZE) as usize..].fill(0);
        }
        let page =
            |at: usize| if last.is_some_and(|(last, _)| last == at) { &copy[..] } else { &pages[at][..] };

        let mut run: [&[u8]; PARTS] = [&[]; PARTS];
        let (mut count, mut from) = (0, 0);
        for at in 0..(pages.len() * PAGE / each) as u64 {
            let index = start + at;
            if index >= self.blocks_of_size() {
                break;
            }
            let block = self.allocate(&mut *self.fs.change()?, index)?.0;
            let sector = self.fs.geometry.sector(block);
            if count == PARTS || count > 0 && from + count as u64 * sectors != sector {
                self.disk().write(from, &run[..count])?;
                count = 0;
            }
            if count == 0 {
                from = sector;
            }
            let inside = at as usize * each;
            run[count] = &page(inside / PAGE)[inside % PAGE..][..each];
            count += 1;
        }
        if count > 0 {
            self.disk().write(from, &run[..count])?;
        }
        let end = start + (pages.len() * PAGE / each) as u64;
        unwritten.retain(|index| !(start..end).contains(index));
        Ok(())
    }

    /// The block with this index, and whether it is new.
    fn allocate(&self, core: &mut Core, index: u64) -> Result<(u32, bool), Errno> {
        if let Some(block) = core.block_of(self.number, index, None)? {
            return Ok((block, false));
        }
        let before = index.checked_sub(1).map(|index| core.block_of(self.number, index, None)).transpose()?;
        let near = before.flatten().map_or_else(|| core.near(self.number), |block| block + 1);
        let block = core.block_of(self.number, index, Some(near))?.ok_or(Errno::EIO)?;
        Ok((block, true))
    }

    /// Allocates the blocks of a range of bytes that is about to be written. Returns how many bytes fit.
    ///
    /// # Errors
    /// [`Errno::ENOSPC`], [`Errno::EFBIG`], [`Errno::EROFS`], [`Errno::EIO`].
    pub fn prepare(&self, start: u64, end: u64) -> Result<u64, Errno> {
        let each = self.fs.geometry.block_bytes as u64;
        if end.div_ceil(each) > self.fs.geometry.most_blocks() {
            return Err(Errno::EFBIG);
        }
        let mut unwritten = self.io.lock();
        let mut core = self.fs.change()?;
        let mut fits = end;
        for index in start / each..end.div_ceil(each) {
            match self.allocate(&mut core, index) {
                Ok((_, true)) => {
                    unwritten.insert(index);
                }
                Ok(_) => {}
                Err(errno) => {
                    // Blocks of numbers may have been allocated for nothing.
                    core.cut(self.number, self.blocks_of_size().max(index))?;
                    fits = index * each;
                    if fits <= start {
                        return Err(errno);
                    }
                    break;
                }
            }
        }
        let inode = core.inode_mut(self.number)?;
        put_u32(inode, inode::MODIFIED, now());
        put_u32(inode, inode::CHANGED, now());
        Ok(fits - start)
    }

    /// Changes the size. What is behind a smaller one goes.
    ///
    /// # Errors
    /// [`Errno::EFBIG`], [`Errno::EROFS`], [`Errno::EIO`].
    pub fn resize(&self, bytes: u64) -> Result<(), Errno> {
        let each = self.fs.geometry.block_bytes as u64;
        let mut unwritten = self.io.lock();
        if bytes.div_ceil(each) > self.fs.geometry.most_blocks() {
            return Err(Errno::EFBIG);
        }
        let mut core = self.fs.change()?;
        if bytes < self.size() {
            let end = bytes.div_ceil(each);
            let last = if bytes.is_multiple_of(each) {
                None
            } else {
                core.block_of(self.number, bytes / each, None)?
            };
            if let Some(block) = last.filter(|_| !unwritten.contains(&(bytes / each))) {
                self.clear_tail(block, (bytes % each) as usize)?;
            }
            core.cut(self.number, end)?;
            unwritten.retain(|&index| index < end);
        }
        let inode = core.inode_mut(self.number)?;
        put_u32(inode, inode::SIZE, bytes as u32);
        put_u32(inode, inode::SIZE_HIGH, (bytes >> 32) as u32);
        put_u32(inode, inode::CHANGED, now());
        put_u32(inode, inode::MODIFIED, now());
        self.size.store(bytes, Ordering::Release);
        Ok(())
    }

    /// Makes the end of a block of the contents zero on the disk.
    fn clear_tail(&self, block: u32, from: usize) -> Result<(), Errno> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(self.fs.geometry.block_bytes).map_err(|_| Errno::ENOMEM)?;
        bytes.resize(self.fs.geometry.block_bytes, 0);
        let sector = self.fs.geometry.sector(block);
        self.disk().read(sector, &mut bytes)?;
        bytes[from..].fill(0);
        self.disk().write(sector, &[&bytes])
    }
}

impl Node for Inode {
    fn attributes(&self) -> Attributes {
        let mut core = self.fs.core.lock();
        // An inode that cannot be read any more shows as empty.
        let none = [0; inode::BYTES];
        let bytes = core.inode(self.number).unwrap_or(&none);
        let time = |at| u64::from(u32_at(bytes, at)) * 1_000_000_000;
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
            accessed: time(inode::ACCESSED),
            modified: time(inode::MODIFIED),
            changed: time(inode::CHANGED),
            created: time(inode::CHANGED),
        }
    }

    fn change(&self, change: &Change) -> Result<(), Errno> {
        let mut core = self.fs.change()?;
        let bytes = core.inode_mut(self.number)?;
        if let Some(mode) = change.mode {
            put_u16(bytes, inode::MODE, (self.kind.mode_bits() | mode & PERMISSIONS) as u16);
        }
        for (id, low, high) in
            [(change.uid, inode::UID, inode::UID_HIGH), (change.gid, inode::GID, inode::GID_HIGH)]
        {
            if let Some(id) = id {
                put_u16(bytes, low, id as u16);
                put_u16(bytes, high, (id >> 16) as u16);
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
            Kind::Regular => self.body.truncate(bytes),
            Kind::Directory => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    fn directory(&self) -> Result<&dyn Directory, Errno> {
        if self.kind == Kind::Directory { Ok(self) } else { Err(Errno::ENOTDIR) }
    }

    fn target(&self) -> Result<Target, Errno> {
        if self.kind != Kind::Symlink {
            return Err(Errno::EINVAL);
        }
        let mut core = self.fs.core.lock();
        let bytes = core.inode(self.number)?;
        let (size, sectors) = (u32_at(bytes, inode::SIZE) as usize, u32_at(bytes, inode::SECTORS));
        let text = if sectors == 0 {
            &bytes[inode::BLOCKS..inode::BLOCKS_END]
        } else {
            let block = core.block_of(self.number, 0, None)?.ok_or(Errno::EIO)?;
            core.buffers.read(block)?
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
