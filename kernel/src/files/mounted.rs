//! Disks, and the file systems on them that are mounted.

use alloc::sync::Arc;
use core::fmt::{self, Write};

use super::dentry::Dentry;
use super::ext2::Ext2;
use super::mounts;
use super::node::Kind;
use super::stored;
use crate::device::disk;
use crate::device::serial::log;
use crate::errno::Errno;

/// The name of a disk's file in `/dev`.
pub fn disk_name(index: usize) -> [u8; 3] {
    [b'v', b'd', b'a' + index as u8]
}

fn all() -> impl Iterator<Item = Arc<Ext2>> {
    mounts::all().filter_map(|mounted| mounted.disk.clone())
}

/// The file system of a disk.
pub fn on_disk(index: usize) -> Option<Arc<Ext2>> {
    all().find(|fs| fs.disk == index)
}

/// Loads the file system of a disk, to be mounted, under the lock of mounts.
///
/// # Errors
/// As `mount(2)`.
pub(super) fn load(source: &Dentry, read_only: bool) -> Result<Arc<Ext2>, Errno> {
    let Kind::BlockDevice(number) = source.node().kind() else { return Err(Errno::ENOTBLK) };
    let disk = stored::disk_of(number).ok_or(Errno::ENXIO)?;
    if on_disk(disk).is_some() {
        return Err(Errno::EBUSY);
    }
    stored::give_up(disk)?;
    Ext2::load(disk, read_only)
}

/// Writes all to the disks.
///
/// # Errors
/// [`Errno::EIO`].
pub fn sync() -> Result<(), Errno> {
    all().map(|fs| fs.sync()).fold(Ok(()), Result::and)
}

/// Writes all but contents of files, and makes all that was written stay.
///
/// # Errors
/// [`Errno::EIO`].
pub fn flush() -> Result<(), Errno> {
    all().map(|fs| fs.flush()).fold(Ok(()), Result::and)
}

/// Says what the disks did, at the end.
pub fn end() {
    stored::forget_disks();
    for (index, disk) in disk::all().iter().enumerate() {
        disk.forget_all();
        log!("{}: {}", disk_name(index).escape_ascii(), disk.counts);
    }
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
