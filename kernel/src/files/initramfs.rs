//! The initial RAM disk: an archive in the format "newc" of cpio, as Linux takes it.

use core::slice;

use quire::platform::FileId;
use spin::Once;

use crate::boot::start_info::PhysBytes;
use crate::memory::layout;

const MAGIC: &[u8] = b"070701";
/// The magic, then thirteen fields of eight hexadecimal digits.
const HEADER_BYTES: usize = 6 + 13 * 8;
const FIELD_INODE: usize = 0;
const FIELD_MODE: usize = 1;
const FIELD_UID: usize = 2;
const FIELD_GID: usize = 3;
const FIELD_LINKS: usize = 4;
const FIELD_TIME: usize = 5;
const FIELD_FILE_SIZE: usize = 6;
const FIELD_FS_MAJOR: usize = 7;
const FIELD_FS_MINOR: usize = 8;
const FIELD_MAJOR: usize = 9;
const FIELD_MINOR: usize = 10;
const FIELD_NAME_SIZE: usize = 11;
/// The name of the entry that ends an archive.
const END: &[u8] = b"TRAILER!!!";

static ARCHIVE: Once<&'static [u8]> = Once::new();

/// A file of the archive.
#[derive(Clone, Copy)]
pub struct File {
    /// Its number for Quire: where its header stands in the archive.
    pub id: FileId,
    /// Its path, without a leading `/` or `./`.
    pub name: &'static [u8],
    /// Its contents.
    pub bytes: &'static [u8],
    /// Its type and permissions.
    pub mode: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// How many names it has.
    pub links: u32,
    /// When it was written, in seconds since 1970.
    pub modified: u64,
    /// The two parts of a device's number.
    pub device: (u32, u32),
    /// Names of one file have the same identity.
    pub identity: (u64, u64),
    next: usize,
}

/// Says where the archive is.
///
/// # Safety
/// The memory stays as it is for ever: Quire was not given it.
pub unsafe fn install(initrd: PhysBytes) {
    // SAFETY: X5: usable memory is in the direct map, and the caller promises that it does not change.
    ARCHIVE.call_once(|| unsafe {
        slice::from_raw_parts(layout::direct_map(initrd.start), initrd.bytes as usize)
    });
}

/// Finds a file by its path.
pub fn find(path: &str) -> Option<File> {
    let wanted = trim(path.as_bytes());
    files().find(|file| file.name == wanted)
}

/// The contents of the file with this number.
pub fn contents(id: FileId) -> Option<&'static [u8]> {
    parts(id.0 as usize).map(|parts| parts.bytes)
}

/// All files, in the archive's order.
pub fn files() -> impl Iterator<Item = File> {
    core::iter::successors(parse(0), |file| parse(file.next)).take_while(|file| file.name != END)
}

/// The parts of an entry.
struct Parts {
    header: &'static [u8],
    name: &'static [u8],
    bytes: &'static [u8],
    /// Where the next entry is.
    next: usize,
}

/// Finds the parts of the entry at an offset.
fn parts(at: usize) -> Option<Parts> {
    let archive = *ARCHIVE.get()?;
    let header = archive.get(at..)?.get(..HEADER_BYTES)?;
    header.starts_with(MAGIC).then_some(())?;
    let name_at = at + HEADER_BYTES;
    let name_end = name_at.checked_add(field(header, FIELD_NAME_SIZE)?)?;
    // The name's size counts the zero byte at its end. Headers and contents start at multiples of 4.
    let name = archive.get(name_at..name_end)?.strip_suffix(b"\0")?;
    let start = name_end.next_multiple_of(4);
    let end = start.checked_add(field(header, FIELD_FILE_SIZE)?)?;
    Some(Parts { header, name, bytes: archive.get(start..end)?, next: end.next_multiple_of(4) })
}

/// Reads the entry at an offset.
fn parse(at: usize) -> Option<File> {
    let Parts { header, name, bytes, next } = parts(at)?;
    let number = |index: usize| field(header, index).map(|value| value as u32);
    Some(File {
        id: FileId(at as u64),
        name: trim(name),
        bytes,
        mode: number(FIELD_MODE)?,
        uid: number(FIELD_UID)?,
        gid: number(FIELD_GID)?,
        links: number(FIELD_LINKS)?,
        modified: number(FIELD_TIME)?.into(),
        device: (number(FIELD_MAJOR)?, number(FIELD_MINOR)?),
        identity: (
            u64::from(number(FIELD_FS_MAJOR)?) << 32 | u64::from(number(FIELD_FS_MINOR)?),
            number(FIELD_INODE)?.into(),
        ),
        next,
    })
}

fn field(header: &[u8], index: usize) -> Option<usize> {
    let digits = &header[MAGIC.len() + index * 8..][..8];
    digits.iter().try_fold(0, |value, &digit| Some(value << 4 | char::from(digit).to_digit(16)? as usize))
}

/// A path without what stands for the root. The dot of a hidden file is part of its name.
fn trim(path: &[u8]) -> &[u8] {
    match path {
        b"." => b"",
        [b'.', b'/', rest @ ..] | [b'/', rest @ ..] => rest,
        _ => path,
    }
}
