//! Blocks of a file system that are not contents of files: read when they are needed, written by [`Buffers::flush`].

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::layout::Geometry;
use crate::device::disk::{Disk, PARTS};
use crate::errno::Errno;

/// More clean blocks than this are not kept.
const MOST: usize = 512;

struct Buffer {
    bytes: Vec<u8>,
    dirty: bool,
}

/// The blocks in memory.
pub struct Buffers {
    disk: &'static Disk,
    geometry: Geometry,
    blocks: BTreeMap<u32, Buffer>,
}

impl Buffers {
    pub fn new(disk: &'static Disk, geometry: Geometry) -> Self {
        Self { disk, geometry, blocks: BTreeMap::new() }
    }

    /// The bytes of a block.
    ///
    /// # Errors
    /// [`Errno::EIO`], also for a number that is none of a block; [`Errno::ENOMEM`].
    pub fn read(&mut self, block: u32) -> Result<&[u8], Errno> {
        self.get(block).map(|buffer| &*buffer.bytes)
    }

    /// The same, to be changed.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn write(&mut self, block: u32) -> Result<&mut [u8], Errno> {
        let buffer = self.get(block)?;
        buffer.dirty = true;
        Ok(&mut buffer.bytes)
    }

    /// A block of zeroes, whatever was there.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn fresh(&mut self, block: u32) -> Result<&mut [u8], Errno> {
        let bytes = self.zeroes()?;
        let buffer = self.blocks.entry(block).insert_entry(Buffer { bytes, dirty: true }).into_mut();
        Ok(&mut buffer.bytes)
    }

    /// The block is free, or has contents of a file.
    pub fn forget(&mut self, block: u32) {
        self.blocks.remove(&block);
    }

    fn zeroes(&self) -> Result<Vec<u8>, Errno> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(self.geometry.block_bytes).map_err(|_| Errno::ENOMEM)?;
        bytes.resize(self.geometry.block_bytes, 0);
        Ok(bytes)
    }

    fn get(&mut self, block: u32) -> Result<&mut Buffer, Errno> {
        if !self.blocks.contains_key(&block) {
            if block == 0 && self.geometry.first_block != 0 || block >= self.geometry.blocks {
                return Err(Errno::EIO);
            }
            if self.blocks.len() >= MOST {
                self.blocks.retain(|_, buffer| buffer.dirty);
            }
            let mut bytes = self.zeroes()?;
            self.disk.read(self.geometry.sector(block), &mut bytes)?;
            self.blocks.insert(block, Buffer { bytes, dirty: false });
        }
        Ok(self.blocks.get_mut(&block).expect("is there now"))
    }

    /// Writes what was changed, neighbours together. After an error the rest is still dirty.
    ///
    /// # Errors
    /// [`Errno::EIO`].
    pub fn flush(&mut self) -> Result<(), Errno> {
        let mut run: [&[u8]; PARTS] = [&[]; PARTS];
        let mut dirty = self.blocks.iter().filter(|(_, buffer)| buffer.dirty).peekable();
        while let Some((&first, buffer)) = dirty.next() {
            run[0] = &buffer.bytes;
            let mut count = 1;
            while count < PARTS
                && let Some((_, buffer)) = dirty.next_if(|(block, _)| **block == first + count as u32)
            {
                run[count] = &buffer.bytes;
                count += 1;
            }
            self.disk.write(self.geometry.sector(first), &run[..count])?;
        }
        self.blocks.values_mut().for_each(|buffer| buffer.dirty = false);
        Ok(())
    }
}
