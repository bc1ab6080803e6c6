//! Entries of directories: records with an inode's number and a name, which fill the blocks of a directory.
//!
//! A record may be longer than its name needs. What is free belongs to the record before it.

use core::ops::Range;

use super::core::{Core, now};
use super::layout::*;
use crate::errno::Errno;
use crate::files::node::Kind;

/// A record that was found.
pub struct Found {
    pub inode: u32,
    block: u32,
    at: usize,
    /// Where the record before it begins, if there is one in the block.
    before: Option<usize>,
}

/// What an entry says about the kind of its inode.
pub fn type_of(kind: Kind) -> u8 {
    match kind {
        Kind::Regular => 1,
        Kind::Directory => 2,
        Kind::CharDevice(_) => 3,
        Kind::BlockDevice(_) => 4,
        Kind::Fifo => 5,
        Kind::Socket => 6,
        Kind::Symlink => 7,
        Kind::Anonymous => 0,
    }
}

/// The length of a record with such a name.
fn length_for(name: usize) -> usize {
    (ENTRY_HEAD + name).next_multiple_of(4)
}

/// A record in a block.
struct Record {
    inode: u32,
    length: usize,
    name: Range<usize>,
    kind: u8,
}

fn record(bytes: &[u8], at: usize) -> Result<Record, Errno> {
    let head = bytes.get(at..at + ENTRY_HEAD).ok_or(Errno::EIO)?;
    let (length, name) = (usize::from(u16_at(head, 4)), usize::from(head[6]));
    let fits = length >= length_for(name) && length % 4 == 0 && at + length <= bytes.len();
    let found = Record {
        inode: u32_at(head, 0),
        length,
        name: at + ENTRY_HEAD..at + ENTRY_HEAD + name,
        kind: head[7],
    };
    if fits { Ok(found) } else { Err(Errno::EIO) }
}

fn put_record(bytes: &mut [u8], at: usize, length: usize, (name, inode, kind): (&[u8], u32, u8)) {
    put_u32(bytes, at, inode);
    put_u16(bytes, at + 4, length as u16);
    (bytes[at + 6], bytes[at + 7]) = (name.len() as u8, kind);
    bytes[at + ENTRY_HEAD..][..name.len()].copy_from_slice(name);
}

impl Core {
    /// Calls `visit` with a block's number, its bytes, the place of a record and that of the one before, until it
    /// returns something.
    fn each_record<R>(
        &mut self,
        directory: u32,
        mut visit: impl FnMut(u32, &[u8], usize, Option<usize>, &Record) -> Option<R>,
    ) -> Result<Option<R>, Errno> {
        let bytes = self.geometry.block_bytes;
        let size = u32_at(self.inode(directory)?, inode::SIZE) as usize;
        for index in 0..size / bytes {
            let block = self.block_of(directory, index as u64, None)?.ok_or(Errno::EIO)?;
            let bytes = self.buffers.read(block)?;
            let (mut at, mut before) = (0, None);
            while at < bytes.len() {
                let record = record(bytes, at)?;
                if let Some(found) = visit(block, bytes, at, before, &record) {
                    return Ok(Some(found));
                }
                (before, at) = (Some(at), at + record.length);
            }
        }
        Ok(None)
    }

    /// Calls `show` for each entry but `.` and `..`, with its type's number.
    pub fn each_entry(&mut self, directory: u32, mut show: impl FnMut(u32, &[u8], u8)) -> Result<(), Errno> {
        self.each_record::<()>(directory, |_, bytes, _, _, record| {
            let name = &bytes[record.name.clone()];
            if record.inode != 0 && name != b"." && name != b".." {
                show(record.inode, name, record.kind);
            }
            None
        })?;
        Ok(())
    }

    /// The entry with this name.
    pub fn find(&mut self, directory: u32, name: &[u8]) -> Result<Option<Found>, Errno> {
        self.each_record(directory, |block, bytes, at, before, record| {
            let is_it = record.inode != 0 && &bytes[record.name.clone()] == name;
            is_it.then_some(Found { inode: record.inode, block, at, before })
        })
    }

    /// What a new entry says about its inode: nothing where older programs expect the length of the name to go on.
    fn type_for(&self, kind: Kind) -> u8 {
        if self.geometry.has_types { type_of(kind) } else { 0 }
    }

    /// Adds an entry with a name that does not exist.
    pub fn add_entry(&mut self, directory: u32, entry: (&[u8], u32, Kind)) -> Result<(), Errno> {
        let needed = length_for(entry.0.len());
        let place = self.each_record(directory, |block, _, at, _, record| {
            let used = if record.inode == 0 { 0 } else { length_for(record.name.len()) };
            (record.length - used >= needed).then_some((block, at, used, record.length))
        })?;
        let (block, at, used, length) = match place {
            Some(place) => place,
            None => (self.add_block(directory)?, 0, 0, self.geometry.block_bytes),
        };
        let kind = self.type_for(entry.2);
        let bytes = self.buffers.write(block)?;
        if used > 0 {
            put_u16(bytes, at + 4, used as u16);
        }
        put_record(bytes, at + used, length - used, (entry.0, entry.1, kind));
        self.note_changed(directory)
    }

    fn add_block(&mut self, directory: u32) -> Result<u32, Errno> {
        let bytes = self.geometry.block_bytes as u32;
        let size = u32_at(self.inode(directory)?, inode::SIZE);
        let last = (size / bytes).checked_sub(1).map(|index| self.block_of(directory, index.into(), None));
        let near = last.transpose()?.flatten().unwrap_or_else(|| self.near(directory));
        let block = self.block_of(directory, (size / bytes).into(), Some(near))?.ok_or(Errno::EIO)?;
        put_u16(self.buffers.fresh(block)?, 4, bytes as u16);
        put_u32(self.inode_mut(directory)?, inode::SIZE, size + bytes);
        Ok(block)
    }

    /// The start of the group of an inode, near which its first blocks shall be.
    pub fn near(&self, number: u32) -> u32 {
        let group = (number - 1) / self.geometry.inodes_per_group;
        self.geometry.first_block + group * self.geometry.blocks_per_group
    }

    /// Removes an entry that was just found.
    pub fn remove_entry(&mut self, directory: u32, found: &Found) -> Result<(), Errno> {
        let bytes = self.buffers.write(found.block)?;
        match found.before {
            Some(before) => {
                let length = u16_at(bytes, before + 4) + u16_at(bytes, found.at + 4);
                put_u16(bytes, before + 4, length);
            }
            None => put_u32(bytes, found.at, 0),
        }
        self.note_changed(directory)
    }

    /// Lets an entry that was just found name another inode.
    pub fn set_entry(&mut self, directory: u32, found: &Found, number: u32, kind: Kind) -> Result<(), Errno> {
        let kind = self.type_for(kind);
        let bytes = self.buffers.write(found.block)?;
        put_u32(bytes, found.at, number);
        bytes[found.at + 7] = kind;
        self.note_changed(directory)
    }

    /// Makes the first block of a new directory.
    pub fn make_directory(&mut self, directory: u32, parent: u32) -> Result<(), Errno> {
        self.add_entry(directory, (b".", directory, Kind::Directory))?;
        self.add_entry(directory, (b"..", parent, Kind::Directory))
    }

    /// Whether a directory has no entries but `.` and `..`.
    pub fn is_empty(&mut self, directory: u32) -> Result<bool, Errno> {
        let mut count = 0;
        self.each_entry(directory, |_, _, _| count += 1)?;
        Ok(count == 0)
    }

    /// Names of a directory changed. Its tree of hashes, if it had one, no longer counts.
    fn note_changed(&mut self, directory: u32) -> Result<(), Errno> {
        let inode = self.inode_mut(directory)?;
        put_u32(inode, inode::FLAGS, u32_at(inode, inode::FLAGS) & !inode::INDEXED);
        put_u32(inode, inode::MODIFIED, now());
        put_u32(inode, inode::CHANGED, now());
        Ok(())
    }

    /// A node has some names more or less.
    pub fn add_links(&mut self, number: u32, by: i16) -> Result<u16, Errno> {
        let inode = self.inode_mut(number)?;
        add_u16(inode, inode::LINKS, by);
        put_u32(inode, inode::CHANGED, now());
        Ok(u16_at(inode, inode::LINKS))
    }
}
