//! Through this Quire reads the pages of files, when a program first touches them.

use quire::limits::FRAME_SIZE;
use quire::platform::{FileId, Pager, PagerError};

use super::initramfs;

const PAGE: usize = FRAME_SIZE as usize;

/// The files of the archive, which cannot change.
pub struct InitramfsPager;

impl Pager for InitramfsPager {
    fn size(&self, file: FileId) -> u64 {
        initramfs::by_id(file).map_or(0, |file| file.bytes.len() as u64)
    }

    fn read(&self, file: FileId, page: u64, bytes: &mut [u8; PAGE]) -> Result<(), PagerError> {
        let file = initramfs::by_id(file).ok_or(PagerError::Io)?;
        let start = (page as usize).checked_mul(PAGE).ok_or(PagerError::BeyondEnd)?;
        let rest = file.bytes.get(start..).filter(|rest| !rest.is_empty()).ok_or(PagerError::BeyondEnd)?;
        let (filled, zeroes) = bytes.split_at_mut(rest.len().min(PAGE));
        filled.copy_from_slice(&rest[..filled.len()]);
        zeroes.fill(0);
        Ok(())
    }

    fn write(&self, _file: FileId, _page: u64, _bytes: &[u8; PAGE]) -> Result<(), PagerError> {
        Err(PagerError::Io)
    }

    fn resize(&self, _file: FileId, _bytes: u64) -> Result<(), PagerError> {
        Err(PagerError::Io)
    }
}
