//! Blocks and inodes: which are free, and which blocks a file has.

use super::buffers::Buffers;
use super::layout::*;
use crate::device::disk::SECTOR;
use crate::errno::Errno;
use crate::files::node::Kind;
use crate::time;

/// The structures of a file system.
pub struct Core {
    pub geometry: Geometry,
    pub buffers: Buffers,
}

/// Which of the two bitmaps of a group.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Map {
    Blocks,
    Inodes,
}

impl Map {
    /// Where a group's descriptor names the bitmap and counts what is free; where the superblock does.
    fn fields(self) -> (usize, usize, usize) {
        match self {
            Self::Blocks => (group::BLOCK_BITMAP, group::FREE_BLOCKS, superblock::FREE_BLOCKS),
            Self::Inodes => (group::INODE_BITMAP, group::FREE_INODES, superblock::FREE_INODES),
        }
    }
}

/// The time now, as inodes have it.
pub fn now() -> u32 {
    (time::realtime_ns() / 1_000_000_000) as u32
}

impl Core {
    /// The superblock, to be changed.
    pub fn superblock(&mut self) -> Result<&mut [u8], Errno> {
        let block = SUPERBLOCK / self.geometry.block_bytes;
        let at = SUPERBLOCK % self.geometry.block_bytes;
        Ok(&mut self.buffers.write(block as u32)?[at..at + SUPERBLOCK])
    }

    /// The block of a group's descriptor, and its place there.
    fn descriptor(&self, group: u32) -> (u32, usize) {
        let at = group as usize * group::BYTES;
        let table = self.geometry.first_block + 1;
        (table + (at / self.geometry.block_bytes) as u32, at % self.geometry.block_bytes)
    }

    fn group_field(&mut self, group: u32, field: usize) -> Result<u32, Errno> {
        let (block, at) = self.descriptor(group);
        Ok(u32_at(self.buffers.read(block)?, at + field))
    }

    /// How many there are of a kind in a group.
    fn size_of(&self, map: Map, group: u32) -> u32 {
        match map {
            Map::Inodes => self.geometry.inodes_per_group,
            Map::Blocks => {
                let start = self.geometry.first_block + group * self.geometry.blocks_per_group;
                self.geometry.blocks_per_group.min(self.geometry.blocks - start)
            }
        }
    }

    /// Takes the first free bit from a place on, in this group or one behind it.
    fn take(&mut self, map: Map, group: u32, from: u32) -> Result<(u32, u32), Errno> {
        let (bitmap, free, _) = map.fields();
        let groups = self.geometry.groups();
        for turn in 0..=groups {
            let group = (group + turn) % groups;
            let (block, at) = self.descriptor(group);
            if u16_at(self.buffers.read(block)?, at + free) == 0 {
                continue;
            }
            let from = if turn == 0 { from } else { 0 };
            let (bits, size) = (self.group_field(group, bitmap)?, self.size_of(map, group));
            if let Some(bit) = first_zero(self.buffers.read(bits)?, from, size) {
                self.buffers.write(bits)?[bit as usize / 8] |= 1 << (bit % 8);
                self.count(map, group, -1)?;
                return Ok((group, bit));
            }
        }
        Err(Errno::ENOSPC)
    }

    fn give_back(&mut self, map: Map, group: u32, bit: u32) -> Result<(), Errno> {
        let bits = self.group_field(group, map.fields().0)?;
        let byte = &mut self.buffers.write(bits)?[bit as usize / 8];
        if *byte & 1 << (bit % 8) == 0 {
            return Err(Errno::EIO);
        }
        *byte &= !(1 << (bit % 8));
        self.count(map, group, 1)
    }

    fn count(&mut self, map: Map, group: u32, by: i16) -> Result<(), Errno> {
        let (_, in_group, in_all) = map.fields();
        let (block, at) = self.descriptor(group);
        add_u16(self.buffers.write(block)?, at + in_group, by);
        add_u32(self.superblock()?, in_all, by.into());
        Ok(())
    }

    fn take_block(&mut self, near: u32) -> Result<u32, Errno> {
        let near =
            near.clamp(self.geometry.first_block, self.geometry.blocks - 1) - self.geometry.first_block;
        let per_group = self.geometry.blocks_per_group;
        let (group, bit) = self.take(Map::Blocks, near / per_group, near % per_group)?;
        Ok(self.geometry.first_block + group * per_group + bit)
    }

    fn free_block(&mut self, block: u32) -> Result<(), Errno> {
        if !(self.geometry.first_block..self.geometry.blocks).contains(&block) {
            return Err(Errno::EIO);
        }
        self.buffers.forget(block);
        let at = block - self.geometry.first_block;
        self.give_back(Map::Blocks, at / self.geometry.blocks_per_group, at % self.geometry.blocks_per_group)
    }

    /// A new inode in the group of another one, all zero.
    pub fn take_inode(&mut self, near: u32, is_directory: bool) -> Result<u32, Errno> {
        let per_group = self.geometry.inodes_per_group;
        let (group, bit) = self.take(Map::Inodes, (near - 1) / per_group, 0)?;
        self.count_directory(group, i16::from(is_directory))?;
        let number = group * per_group + bit + 1;
        let bytes = self.geometry.inode_bytes;
        let (block, at) = self.inode_place(number)?;
        self.buffers.write(block)?[at..at + bytes].fill(0);
        Ok(number)
    }

    /// Frees an inode whose blocks are free.
    pub fn free_inode(&mut self, number: u32, is_directory: bool) -> Result<(), Errno> {
        put_u32(self.inode_mut(number)?, inode::DELETED, now());
        let (group, bit) =
            ((number - 1) / self.geometry.inodes_per_group, (number - 1) % self.geometry.inodes_per_group);
        self.count_directory(group, -i16::from(is_directory))?;
        self.give_back(Map::Inodes, group, bit)
    }

    fn count_directory(&mut self, group: u32, by: i16) -> Result<(), Errno> {
        let (block, at) = self.descriptor(group);
        add_u16(self.buffers.write(block)?, at + group::DIRECTORIES, by);
        Ok(())
    }

    fn inode_place(&mut self, number: u32) -> Result<(u32, usize), Errno> {
        if number == 0 || number > self.geometry.inodes {
            return Err(Errno::EIO);
        }
        let (group, index) =
            ((number - 1) / self.geometry.inodes_per_group, (number - 1) % self.geometry.inodes_per_group);
        let at = index as usize * self.geometry.inode_bytes;
        let table = self.group_field(group, group::INODES)?;
        let block = table.checked_add((at / self.geometry.block_bytes) as u32).ok_or(Errno::EIO)?;
        Ok((block, at % self.geometry.block_bytes))
    }

    /// The bytes of an inode.
    pub fn inode(&mut self, number: u32) -> Result<&[u8], Errno> {
        let (block, at) = self.inode_place(number)?;
        Ok(&self.buffers.read(block)?[at..at + inode::BYTES])
    }

    /// The same, to be changed.
    pub fn inode_mut(&mut self, number: u32) -> Result<&mut [u8], Errno> {
        let (block, at) = self.inode_place(number)?;
        Ok(&mut self.buffers.write(block)?[at..at + inode::BYTES])
    }

    /// The block of the disk that is a block of a file; `None` for a hole. With `near` a hole is filled, near there.
    pub fn block_of(&mut self, number: u32, index: u64, near: Option<u32>) -> Result<Option<u32>, Errno> {
        let (path, steps) = self.path(index)?;
        let (block, at) = self.inode_place(number)?;
        let mut slot = (block, at + inode::BLOCKS + 4 * path[0] as usize);
        let mut step = 1;
        loop {
            let found = u32_at(self.buffers.read(slot.0)?, slot.1);
            let next = match (found, near) {
                (0, None) => return Ok(None),
                (0, Some(near)) => self.fill_hole(number, slot, near, step < steps)?,
                (found, _) => found,
            };
            if step == steps {
                return Ok(Some(next));
            }
            slot = (next, 4 * path[step] as usize);
            step += 1;
        }
    }

    fn fill_hole(
        &mut self,
        number: u32,
        slot: (u32, usize),
        near: u32,
        has_numbers: bool,
    ) -> Result<u32, Errno> {
        let block = self.take_block(near)?;
        if has_numbers && let Err(errno) = self.buffers.fresh(block) {
            self.free_block(block)?;
            return Err(errno);
        }
        put_u32(self.buffers.write(slot.0)?, slot.1, block);
        let sectors = (self.geometry.block_bytes / SECTOR) as i32;
        add_u32(self.inode_mut(number)?, inode::SECTORS, sectors);
        Ok(block)
    }

    /// The steps from an inode to a block of its file: the place in the inode, then in each block of numbers.
    fn path(&self, index: u64) -> Result<([u64; 4], usize), Errno> {
        let numbers = self.geometry.numbers();
        if index < DIRECT {
            return Ok(([index, 0, 0, 0], 1));
        }
        let mut rest = index - DIRECT;
        for depth in 1..=3u32 {
            if rest < numbers.pow(depth) {
                let mut path = [DIRECT + u64::from(depth) - 1, 0, 0, 0];
                for step in 1..=depth {
                    path[step as usize] = rest / numbers.pow(depth - step) % numbers;
                }
                return Ok((path, depth as usize + 1));
            }
            rest -= numbers.pow(depth);
        }
        Err(Errno::EFBIG)
    }

    /// Whether the places for numbers of blocks in an inode hold such numbers. In a device's inode its own number stands
    /// there, in that of a short symbolic link the path to which it leads.
    pub fn has_blocks(&mut self, number: u32, kind: Kind) -> Result<bool, Errno> {
        Ok(match kind {
            Kind::Regular | Kind::Directory => true,
            Kind::Symlink => {
                let each = (self.geometry.block_bytes / SECTOR) as u32;
                let inode = self.inode(number)?;
                let of_attributes = if u32_at(inode, inode::ATTRIBUTES) != 0 { each } else { 0 };
                u32_at(inode, inode::SECTORS) > of_attributes
            }
            _ => false,
        })
    }

    /// Frees the block of an inode's extended attributes, which other inodes may have too.
    pub fn free_attributes(&mut self, number: u32) -> Result<(), Errno> {
        let block = u32_at(self.inode(number)?, inode::ATTRIBUTES);
        if block == 0 {
            return Ok(());
        }
        put_u32(self.inode_mut(number)?, inode::ATTRIBUTES, 0);
        match u32_at(self.buffers.read(block)?, ATTRIBUTE_USERS) {
            0 | 1 => self.free_block(block),
            users => {
                put_u32(self.buffers.write(block)?, ATTRIBUTE_USERS, users - 1);
                Ok(())
            }
        }
    }

    /// Frees the blocks of a file from this one on.
    pub fn cut(&mut self, number: u32, keep: u64) -> Result<(), Errno> {
        let numbers = self.geometry.numbers();
        let mut first = 0;
        for place in 0..DIRECT + 3 {
            let depth = place.saturating_sub(DIRECT - 1) as u32;
            let at = inode::BLOCKS + 4 * place as usize;
            let block = u32_at(self.inode(number)?, at);
            let kept = keep.saturating_sub(first);
            first += numbers.pow(depth);
            if block == 0 || kept >= numbers.pow(depth) {
                continue;
            }
            let freed = self.cut_tree(block, depth, kept)?;
            let inode = self.inode_mut(number)?;
            if kept == 0 {
                put_u32(inode, at, 0);
            }
            let sectors = freed * (self.geometry.block_bytes / SECTOR) as u32;
            add_u32(self.inode_mut(number)?, inode::SECTORS, -(sectors as i32));
        }
        Ok(())
    }

    /// Frees the blocks below one, but for the first `keep` of the file; returns how many were freed.
    fn cut_tree(&mut self, block: u32, depth: u32, keep: u64) -> Result<u32, Errno> {
        let mut freed = 0;
        if depth > 0 {
            let each = self.geometry.numbers().pow(depth - 1);
            for at in keep / each..self.geometry.numbers() {
                let slot = 4 * at as usize;
                let child = u32_at(self.buffers.read(block)?, slot);
                let kept = keep.saturating_sub(at * each);
                if child == 0 || kept >= each {
                    continue;
                }
                freed += self.cut_tree(child, depth - 1, kept)?;
                if kept == 0 && keep > 0 {
                    put_u32(self.buffers.write(block)?, slot, 0);
                }
            }
        }
        if keep == 0 {
            self.free_block(block)?;
            freed += 1;
        }
        Ok(freed)
    }
}

/// The first zero bit from a place on, or else from the start.
fn first_zero(bits: &[u8], from: u32, size: u32) -> Option<u32> {
    let search = |range: core::ops::Range<u32>| {
        let mut at = range.start;
        while at < range.end {
            let byte = bits[at as usize / 8] >> (at % 8);
            let ones = byte.trailing_ones().min(8 - at % 8);
            if at % 8 + ones < 8 {
                return Some(at + ones).filter(|found| *found < range.end);
            }
            at += ones;
        }
        None
    };
    search(from..size).or_else(|| search(0..from.min(size)))
}
