//! The way between a node's pages and the disk: its contents are read, written, given blocks and cut.

use ::core::sync::atomic::Ordering;
use alloc::vec::Vec;

use quire::limits::FRAME_SIZE;

use super::core::{Core, now};
use super::inode::Inode;
use super::layout::*;
use crate::device::disk::{PARTS, SECTOR};
use crate::errno::Errno;

const PAGE: usize = FRAME_SIZE as usize;

impl Inode {
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
        let near = before.flatten().map_or_else(|| core.near(self.number), |block| block.saturating_add(1));
        let block = core.block_of(self.number, index, Some(near))?.ok_or(Errno::EIO)?;
        Ok((block, true))
    }

    /// Allocates the blocks of a range of bytes that is about to be written. Returns how many bytes fit.
    ///
    /// # Errors
    /// [`Errno::ENOSPC`], [`Errno::EFBIG`], [`Errno::EROFS`], [`Errno::EIO`].
    pub fn prepare(&self, start: u64, end: u64) -> Result<u64, Errno> {
        self.fs.with_space(|| self.try_prepare(start, end))
    }

    fn try_prepare(&self, start: u64, end: u64) -> Result<u64, Errno> {
        let each = self.fs.geometry.block_bytes as u64;
        if !self.fs.geometry.may_have(end) {
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
                    let kept = self.blocks_of_size().max(index);
                    core.cut(self.number, kept)?;
                    unwritten.retain(|&index| index < kept);
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
        if !self.fs.geometry.may_have(bytes) {
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
