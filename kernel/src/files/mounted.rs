//! File systems on disks that are mounted (`mount(2)`, `umount2(2)`).

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::{self, Write};

use spin::Mutex;

use super::dentry::Dentry;
use super::ext2::Ext2;
use super::node::Kind;
use super::stored;
use crate::device::disk;
use crate::device::serial::log;
use crate::errno::Errno;
use crate::task::sleep_lock::SleepLock;

struct Mounted {
    fs: Arc<Ext2>,
    /// The directory below, and the root above it.
    at: Arc<Dentry>,
    root: Arc<Dentry>,
}

/// Held while a disk is mounted, unmounted, or opened to be written.
pub static CHANGES: SleepLock<()> = SleepLock::new(());
static MOUNTED: Mutex<Vec<Mounted>> = Mutex::new(Vec::new());

/// The name of a disk's file in `/dev`.
pub fn disk_name(index: usize) -> [u8; 3] {
    [b'v', b'd', b'a' + index as u8]
}

/// The file system of a disk.
pub fn on_disk(index: usize) -> Option<Arc<Ext2>> {
    MOUNTED.lock().iter().find(|mounted| mounted.fs.disk == index).map(|mounted| mounted.fs.clone())
}

/// Whether file systems of this type can be mounted.
pub fn is_known(kind: &[u8]) -> bool {
    kind == b"ext2"
}

/// Mounts the file system of a disk over a directory.
///
/// # Errors
/// As `mount(2)`.
pub fn mount(source: &Dentry, target: &Arc<Dentry>, read_only: bool) -> Result<(), Errno> {
    let Kind::BlockDevice(number) = source.node().kind() else { return Err(Errno::ENOTBLK) };
    let disk = stored::disk_of(number).ok_or(Errno::ENXIO)?;
    if !target.node().is_directory() {
        return Err(Errno::ENOTDIR);
    }
    let _one_at_a_time = CHANGES.lock();
    let is_root = MOUNTED.lock().iter().any(|mounted| Arc::ptr_eq(&mounted.root, target));
    if is_root || target.is_mount_point() || stored::is_open(disk) || on_disk(disk).is_some() {
        return Err(Errno::EBUSY);
    }
    let fs = Ext2::load(disk, read_only)?;
    let root = target.mount(fs.root()?);
    MOUNTED.lock().push(Mounted { fs, at: target.clone(), root });
    Ok(())
}

/// Unmounts what has its root at a place, which the caller refers to once.
///
/// # Errors
/// [`Errno::EINVAL`] if it is no such root; [`Errno::EBUSY`] while anything in it is used; [`Errno::EIO`].
pub fn unmount(place: &Arc<Dentry>) -> Result<(), Errno> {
    let _one_at_a_time = CHANGES.lock();
    let (fs, at) = {
        let all = MOUNTED.lock();
        let found = all.iter().find(|mounted| Arc::ptr_eq(&mounted.root, place)).ok_or(Errno::EINVAL)?;
        (found.fs.clone(), found.at.clone())
    };
    // From here on no walk finds it.
    let root = at.take_mounted().ok_or(Errno::EINVAL)?;
    // The table, the caller and this function refer to the root.
    let outcome = if Arc::strong_count(&root) > 3 { Err(Errno::EBUSY) } else { fs.unmount() };
    if outcome.is_err() {
        at.put_mounted(root);
        return outcome;
    }
    let gone: Vec<_> = MOUNTED.lock().extract_if(.., |mounted| Arc::ptr_eq(&mounted.fs, &fs)).collect();
    drop(gone);
    Ok(())
}

/// Writes all to the disks.
///
/// # Errors
/// [`Errno::EIO`].
pub fn sync() -> Result<(), Errno> {
    let all: Vec<_> = MOUNTED.lock().iter().map(|mounted| mounted.fs.clone()).collect();
    all.iter().map(|fs| fs.sync()).fold(Ok(()), Result::and)
}

/// Unmounts everything. No program runs.
pub fn end() {
    let all: Vec<_> = MOUNTED.lock().iter().map(|mounted| mounted.root.clone()).collect();
    for root in all.into_iter().rev() {
        if let Err(errno) = unmount(&root) {
            log!("{} cannot be unmounted: {errno}", root.path().escape_ascii());
        }
    }
    for (index, disk) in disk::all().iter().enumerate() {
        disk.forget_all();
        log!("{}: {}", disk_name(index).escape_ascii(), disk.counts);
    }
}

/// Calls `show` for each: the disk's name, the place, and whether it can be written.
pub fn each(mut show: impl FnMut(&str, &[u8], bool) -> fmt::Result) -> fmt::Result {
    let all: Vec<_> = MOUNTED
        .lock()
        .iter()
        .map(|mounted| (mounted.fs.disk, mounted.fs.read_only, mounted.root.clone()))
        .collect();
    all.iter().try_for_each(|(disk, read_only, root)| {
        let name = disk_name(*disk);
        show(core::str::from_utf8(&name).unwrap_or_default(), &root.path(), !read_only)
    })
}

/// Writes `/proc/diskstats`.
///
/// # Errors
/// Those of the writer.
pub fn statistics(out: &mut dyn Write) -> fmt::Result {
    disk::all().iter().enumerate().try_for_each(|(index, disk)| {
        let number = stored::device_number(index);
        let [reads, read, writes, written, flushes] = disk.counts.now();
        let name = disk_name(index);
        writeln!(
            out,
            "{:4} {:7} {} {reads} 0 {read} 0 {writes} 0 {written} 0 0 0 0 0 0 0 0 {flushes} 0",
            number >> 8,
            number & 0xff,
            name.escape_ascii()
        )
    })
}
