//! The files of the initial RAM disk as Quire's pager has them.
//!
//! The archive's bytes never change. What a program writes stays in the page cache: its pages are dirty, nothing
//! writes them back, and they go with the file. So only the sizes of files that were cut short or lengthened are
//! kept here.

use alloc::collections::BTreeMap;

use quire::limits::FRAME_SIZE;
use quire::platform::{FileId, Pager, PagerError};
use spin::Mutex;

use super::initramfs;

const PAGE: usize = FRAME_SIZE as usize;

/// The sizes of changed files.
static CHANGED: Mutex<BTreeMap<FileId, Sizes>> = Mutex::new(BTreeMap::new());

/// The size of a changed file.
#[derive(Clone, Copy)]
struct Sizes {
    /// The size now.
    size: u64,
    /// How many bytes of the archive it still has; behind them it has zeroes.
    kept: u64,
}

fn sizes(file: FileId) -> Sizes {
    let changed = CHANGED.lock().get(&file).copied();
    changed.unwrap_or_else(|| {
        let size = initramfs::contents(file).map_or(0, |bytes| bytes.len() as u64);
        Sizes { size, kept: size }
    })
}

/// The size of a file in bytes.
pub fn size(file: FileId) -> u64 {
    sizes(file).size
}

/// Forgets changed sizes. No file of the archive is open any more.
pub fn forget_changes() {
    let forgotten = core::mem::take(&mut *CHANGED.lock());
    drop(forgotten);
}

/// Reads pages from the archive.
pub struct ArchivePager;

impl Pager for ArchivePager {
    fn size(&self, file: FileId) -> u64 {
        size(file)
    }

    fn read(&self, file: FileId, page: u64, bytes: &mut [u8; PAGE]) -> Result<(), PagerError> {
        let bytes_of_file = initramfs::contents(file).ok_or(PagerError::Io)?;
        let sizes = sizes(file);
        if page >= sizes.size.div_ceil(FRAME_SIZE) {
            return Err(PagerError::BeyondEnd);
        }
        let kept = &bytes_of_file[..sizes.kept as usize];
        let rest = kept.get(page as usize * PAGE..).unwrap_or(&[]);
        let (filled, zeroes) = bytes.split_at_mut(rest.len().min(PAGE));
        filled.copy_from_slice(&rest[..filled.len()]);
        zeroes.fill(0);
        Ok(())
    }

    /// The last user of a file has gone, and with it what was written.
    fn write(&self, _file: FileId, _page: u64, _bytes: &[u8; PAGE]) -> Result<(), PagerError> {
        Ok(())
    }

    fn resize(&self, file: FileId, bytes: u64) -> Result<(), PagerError> {
        let kept = sizes(file).kept.min(bytes);
        CHANGED.lock().insert(file, Sizes { size: bytes, kept });
        Ok(())
    }
}
