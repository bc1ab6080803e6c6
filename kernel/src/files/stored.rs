//! Files on disks: the pager that moves their pages, disks as files (`/dev/vda`), and what all of them have in common.
//!
//! A page that a program changes is dirty until it is written back: by `msync`, `fsync` or `sync`, when programs have
//! written an eighth of the memory, when memory is short, and when the file system is unmounted. Clean pages stay until
//! memory is short.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::sync::Mutex;
use linux_raw_sys::ioctl;
use quire::addr::VirtAddr;
use quire::limits::FRAME_SIZE;
use quire::platform::{FileId, Pager, PagerError};

use super::archive::ArchivePager;
use super::ext2::Inode;
use super::io::{Sink, Source};
use super::limits;
use super::mounted;
use super::mounts;
use super::node::Node;
use super::open::{File, Io, Ioctl, Mapping, Opening};
use super::special;
use super::tmpfs::{Body, Contents};
use crate::device::disk::{self, Disk, SECTOR};
use crate::errno::Errno;
use crate::memory::manager::manager;

const PAGE: usize = FRAME_SIZE as usize;
/// The major number of virtio disks in `/dev`, and how many minor numbers each has, as in Linux.
const MAJOR: u64 = 254;
const MINORS: u64 = 16;

/// A file whose pages are on a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stored {
    /// The whole disk with this number.
    Disk(usize),
    /// A file of the file system on a disk.
    Inode { disk: usize, number: u32 },
}

const IS_DISK: u64 = 1 << 62;
const IS_INODE: u64 = 1 << 63;

impl Stored {
    /// Its name for the pager. Files of the archive have smaller numbers.
    pub fn id(self) -> FileId {
        FileId(match self {
            Self::Disk(disk) => IS_DISK | disk as u64,
            Self::Inode { disk, number } => IS_INODE | (disk as u64) << 32 | u64::from(number),
        })
    }

    fn of(id: FileId) -> Option<Self> {
        let (low, high) = (id.0 as u32, (id.0 & !(IS_DISK | IS_INODE)) >> 32);
        match (id.0 & IS_INODE, id.0 & IS_DISK) {
            (0, 0) => None,
            (0, _) => Some(Self::Disk(low as usize)),
            _ => Some(Self::Inode { disk: high as usize, number: low }),
        }
    }

    fn inode(self) -> Option<Arc<Inode>> {
        match self {
            Self::Disk(_) => None,
            Self::Inode { disk, number } => mounted::on_disk(disk)?.cached(number),
        }
    }

    /// Its size in bytes.
    pub fn size(self) -> u64 {
        match self {
            Self::Disk(index) => disk::all()[index].sectors() * SECTOR as u64,
            Self::Inode { .. } => self.inode().map_or(0, |inode| inode.size()),
        }
    }

    /// Prepares the file for bytes that are about to be written, and returns how many of them fit.
    ///
    /// # Errors
    /// [`Errno::ENOSPC`] if none does, and as [`Inode::prepare`].
    pub fn prepare(self, start: u64, bytes: usize) -> Result<usize, Errno> {
        match self {
            Self::Disk(_) => match self.size().saturating_sub(start).min(bytes as u64) {
                0 => Err(Errno::ENOSPC),
                left => Ok(left as usize),
            },
            Self::Inode { .. } => {
                let fits = self.inode().ok_or(Errno::EIO)?.prepare(start, start + bytes as u64)?;
                Ok(fits as usize)
            }
        }
    }
}

/// The source of all pages of files.
pub struct Storage;

impl Pager for Storage {
    fn size(&self, file: FileId) -> u64 {
        Stored::of(file).map_or_else(|| ArchivePager.size(file), Stored::size)
    }

    fn read(&self, file: FileId, page: u64, bytes: &mut [u8; PAGE]) -> Result<(), PagerError> {
        let Some(stored) = Stored::of(file) else { return ArchivePager.read(file, page, bytes) };
        if page >= stored.size().div_ceil(FRAME_SIZE) {
            return Err(PagerError::BeyondEnd);
        }
        let read = match stored {
            Stored::Disk(index) => {
                let (part, rest) = bytes.split_at_mut(part_of_disk(stored, page));
                rest.fill(0);
                disk::all()[index].read(sector(page), part)
            }
            Stored::Inode { .. } => {
                stored.inode().ok_or(Errno::EIO).and_then(|inode| inode.read_page(page, bytes))
            }
        };
        read.map_err(|_| PagerError::Io)
    }

    fn write(&self, file: FileId, page: u64, bytes: &[u8; PAGE]) -> Result<(), PagerError> {
        self.write_run(file, page, &[bytes]).map(drop)
    }

    fn write_run(&self, file: FileId, first: u64, run: &[&[u8; PAGE]]) -> Result<usize, PagerError> {
        let Some(stored) = Stored::of(file) else {
            return ArchivePager.write_run(file, first, run);
        };
        let write = |run: &[&[u8; PAGE]]| match stored {
            Stored::Disk(index) => write_disk(&disk::all()[index], stored, first, run),
            Stored::Inode { .. } => {
                stored.inode().ok_or(Errno::EIO).and_then(|inode| inode.write_pages(first, run))
            }
        };
        // Where a run fails, its pages are tried one by one.
        let one = &run[..run.len().min(1)];
        let written = write(run).map(|()| run.len()).or_else(|_| write(one).map(|()| one.len()));
        written.map_err(|_| PagerError::Io)
    }

    fn resize(&self, file: FileId, bytes: u64) -> Result<(), PagerError> {
        let Some(stored) = Stored::of(file) else { return ArchivePager.resize(file, bytes) };
        stored.inode().ok_or(PagerError::Io)?.resize(bytes).map_err(|_| PagerError::Io)
    }
}

fn sector(page: u64) -> u64 {
    page * (PAGE / SECTOR) as u64
}

/// How much of a page a disk has: the last one may be cut off.
fn part_of_disk(disk: Stored, page: u64) -> usize {
    (disk.size() - page * FRAME_SIZE).min(FRAME_SIZE) as usize
}

fn write_disk(disk: &Disk, stored: Stored, first: u64, run: &[&[u8; PAGE]]) -> Result<(), Errno> {
    for (at, pages) in run.chunks(disk::PARTS).enumerate() {
        let mut parts: [&[u8]; disk::PARTS] = [&[]; disk::PARTS];
        let start = first + (at * disk::PARTS) as u64;
        for ((part, page), at) in parts.iter_mut().zip(pages).zip(start..) {
            *part = &page[..part_of_disk(stored, at)];
        }
        disk.write(sector(start), &parts[..pages.len()])?;
    }
    Ok(())
}

/// What programs have written since all was written back.
static WRITTEN: AtomicU64 = AtomicU64::new(0);
/// The parts of memory that may be dirty, and that stay free when programs read and write.
const DIRTY_SHARE: u64 = 8;
const FREE_SHARE: u64 = 16;

/// Keeps memory for others while a program reads and writes files: writes back what it has written, and drops clean
/// pages. The caller holds no lock of a file system.
///
/// # Errors
/// [`Errno::EIO`].
pub fn relieve(written: usize) -> Result<(), Errno> {
    let frames = manager().pages().memory_info();
    let all = WRITTEN.fetch_add(written as u64, Ordering::Relaxed) + written as u64;
    if all > frames.total / DIRTY_SHARE * FRAME_SIZE {
        WRITTEN.store(0, Ordering::Relaxed);
        sync_all()?;
    }
    if frames.available() < frames.total / FREE_SHARE {
        manager().reclaim();
    }
    Ok(())
}

/// Writes all that is dirty to the disks.
///
/// # Errors
/// [`Errno::EIO`]; what could be written is.
pub fn sync_all() -> Result<(), Errno> {
    let disks = (0..disk::all().len()).map(|index| match body_of(index) {
        Some(body) => sync_disk(index, &body),
        None => Ok(()),
    });
    disks.fold(Ok(()), Result::and).and(mounted::sync())
}

/// Makes what was written to the disks stay, with all that leads to it. Contents of files that are dirty stay so.
///
/// # Errors
/// [`Errno::EIO`]; what could be written is.
pub fn flush_all() -> Result<(), Errno> {
    let disks = (0..disk::all().len())
        .filter(|index| body_of(*index).is_some())
        .map(|index| disk::all()[index].flush());
    disks.fold(Ok(()), Result::and).and(mounted::flush())
}

/// The use of a disk as a file.
struct Use {
    /// How often it is open.
    opens: usize,
    /// Its contents, which a mapping may show when it is open no more.
    body: Option<Arc<Body>>,
}

impl Use {
    /// Takes the contents out, to be dropped without the lock, if nothing uses them and all is on the disk.
    fn take_unused(&mut self) -> Option<Arc<Body>> {
        let is_unused =
            |body: &Arc<Body>| body.opened().is_none_or(|file| file.is_unmapped() && file.dirty() == 0);
        if self.opens == 0 { self.body.take_if(|body| is_unused(body)) } else { None }
    }
}

static USES: Mutex<[Use; 16]> = Mutex::new([const { Use { opens: 0, body: None } }; 16]);

fn body_of(index: usize) -> Option<Arc<Body>> {
    USES.lock().get(index)?.body.clone()
}

/// Prepares a disk for a file system to be mounted on it: what programs wrote to it as a file is there. The caller keeps
/// it from being opened.
///
/// # Errors
/// [`Errno::EBUSY`] while it is open or mapped; [`Errno::EIO`].
pub fn give_up(index: usize) -> Result<(), Errno> {
    let Some(body) = body_of(index) else { return Ok(()) };
    let is_unmapped = |body: &Body| body.opened().is_none_or(|file| file.is_unmapped());
    if USES.lock()[index].opens > 0 || !is_unmapped(&body) {
        return Err(Errno::EBUSY);
    }
    sync_disk(index, &body)?;
    let unused = USES.lock()[index].take_unused();
    if unused.is_some() { Ok(()) } else { Err(Errno::EBUSY) }
}

/// Forgets the contents of all disks, at the end.
pub fn forget_disks() {
    for index in 0..disk::all().len() {
        let body = USES.lock().get_mut(index).and_then(|usage| usage.body.take());
        drop(body);
    }
}

fn sync_disk(index: usize, body: &Body) -> Result<(), Errno> {
    if let Some(file) = body.opened() {
        file.sync()?;
    }
    disk::all()[index].flush()
}

/// The number of a disk's file in `/dev`.
pub fn device_number(index: usize) -> u64 {
    special::number(MAJOR, index as u64 * MINORS)
}

/// The disk whose file has this number.
pub fn disk_of(number: u64) -> Option<usize> {
    (0..disk::all().len()).find(|index| device_number(*index) == number)
}

/// Opens the disk with this number as a file. With its last use, what is dirty is written back.
///
/// # Errors
/// [`Errno::ENXIO`] if there is none, [`Errno::EROFS`], [`Errno::EBUSY`] while a file system on it is mounted.
pub fn open_disk(number: u64, opening: &Opening<'_>) -> Result<Box<dyn File>, Errno> {
    let index = disk_of(number).ok_or(Errno::ENXIO)?;
    let _no_mount = mounts::CHANGES.lock();
    if opening.writes() {
        if disk::all()[index].is_read_only() {
            return Err(Errno::EROFS);
        }
        if mounted::on_disk(index).is_some() {
            return Err(Errno::EBUSY);
        }
    }
    // Pages that nothing uses may be older than what a file system wrote.
    let unused = USES.lock().get_mut(index).ok_or(Errno::ENXIO)?.take_unused();
    drop(unused);
    let new = || Arc::new(Body::new(Contents::Stored(Stored::Disk(index))));
    let usage = &mut USES.lock()[index];
    usage.opens += 1;
    let body = usage.body.get_or_insert_with(new).clone();
    Ok(Box::new(StoredFile { owner: Owner::Disk(OpenDisk { index, body }) }))
}

/// A disk that is open as a file.
struct OpenDisk {
    index: usize,
    body: Arc<Body>,
}

impl Drop for OpenDisk {
    /// With the last one, what is dirty is written back. Until then the disk is in use.
    fn drop(&mut self) {
        let mut went_well = true;
        let unused = loop {
            let mut uses = USES.lock();
            let usage = &mut uses[self.index];
            let is_dirty = || self.body.opened().is_some_and(|file| file.dirty() > 0);
            if usage.opens > 1 || !went_well || !is_dirty() {
                usage.opens -= 1;
                break usage.take_unused();
            }
            drop(uses);
            went_well = self.body.opened().is_none_or(|file| file.sync().is_ok());
        };
        drop(unused);
    }
}

/// An open file on a disk.
pub struct StoredFile {
    owner: Owner,
}

enum Owner {
    Inode(Arc<Inode>),
    Disk(OpenDisk),
}

impl StoredFile {
    /// An open regular file.
    pub fn of_inode(inode: Arc<Inode>) -> Self {
        Self { owner: Owner::Inode(inode) }
    }

    fn body(&self) -> &Body {
        match &self.owner {
            Owner::Inode(inode) => inode.body(),
            Owner::Disk(disk) => &disk.body,
        }
    }
}

impl File for StoredFile {
    fn read(&self, position: &mut u64, to: &mut dyn Sink, _io: Io) -> Result<usize, Errno> {
        self.body().read(position, to)
    }

    fn write(&self, position: &mut u64, from: &mut dyn Source, io: Io) -> Result<usize, Errno> {
        let limit = match self.owner {
            Owner::Inode(_) => limits::file_size(),
            Owner::Disk(_) => i64::MAX as u64,
        };
        self.body().write(position, from, io.append, limit)
    }

    fn mapping(&self) -> Result<Mapping<'_>, Errno> {
        Ok(Mapping::File(self.body().file()?))
    }

    fn allocate(&self, _mode: u32, _offset: u64, _bytes: u64) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn end(&self) -> Option<u64> {
        Some(self.body().size())
    }

    fn sync(&self) -> Result<(), Errno> {
        match &self.owner {
            Owner::Inode(inode) => inode.sync(),
            Owner::Disk(disk) => sync_disk(disk.index, &disk.body),
        }
    }

    fn ioctl(&self, call: &Ioctl<'_>) -> Result<u64, Errno> {
        let Owner::Disk(OpenDisk { index, body }) = &self.owner else { return Err(Errno::ENOTTY) };
        let (to, bytes) = (VirtAddr(call.argument), body.size());
        match call.request {
            ioctl::BLKGETSIZE64 => call.memory.write(to, &bytes.to_le_bytes())?,
            ioctl::BLKGETSIZE => call.memory.write(to, &(bytes / SECTOR as u64).to_le_bytes())?,
            ioctl::BLKSSZGET => call.memory.write(to, &(SECTOR as u32).to_le_bytes())?,
            ioctl::BLKROGET => {
                call.memory.write(to, &u32::from(disk::all()[*index].is_read_only()).to_le_bytes())?;
            }
            ioctl::BLKFLSBUF => sync_disk(*index, body)?,
            _ => return Err(Errno::ENOTTY),
        }
        Ok(0)
    }
}
