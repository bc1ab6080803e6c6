//! Files without a disk: contents are a pure function of file and offset, plus the pages that were written
//! back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, RwLock};

use quire::limits::FRAME_SIZE;
use quire::platform::{FileId, Pager, PagerError};

use crate::failures::Failures;
use crate::plan::{FailurePlan, mix};

const PAGE: usize = FRAME_SIZE as usize;

type Page = Box<[u8; PAGE]>;
/// Work that delays an answer.
type Slow = Box<dyn Fn() + Send + Sync>;

/// Counts of a [`SyntheticFiles`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileCounters {
    /// Pages read, failed reads not counted.
    pub reads: u64,
    /// Pages written back, failed writes not counted.
    pub writes: u64,
}

/// The size of a file, and how much of it still has its first contents.
#[derive(Clone, Copy, Default)]
struct Size {
    bytes: u64,
    pristine: u64,
}

/// A pager of files that exist by having a size; a file without one is empty. Reads and writes fail with
/// [`PagerError::Io`] as the plans say.
#[derive(Default)]
pub struct SyntheticFiles {
    sizes: RwLock<HashMap<FileId, Size>>,
    written: Mutex<HashMap<(FileId, u64), Page>>,
    reads: AtomicU64,
    writes: AtomicU64,
    /// The most pages that one call writes; 0 counts as 1.
    longest_run: AtomicUsize,
    runs: Mutex<Vec<(u64, usize)>>,
    read_failures: Failures,
    write_failures: Failures,
    slow_sizes: RwLock<Option<Slow>>,
    slow_reads: RwLock<Option<Slow>>,
}

impl SyntheticFiles {
    /// No files.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives `file` a size in bytes and its first contents, except for pages that were written back before.
    pub fn set_size(&self, file: FileId, bytes: u64) {
        let size = Size { bytes, pristine: bytes };
        let mut sizes = self.sizes.write().expect("no holder of the sizes panics");
        sizes.insert(file, size);
        self.forget_behind(file, bytes);
    }

    fn size_of(&self, file: FileId) -> Size {
        self.sizes.read().expect("no holder of the sizes panics").get(&file).copied().unwrap_or_default()
    }

    /// Drops pages written back after an end. The caller locks the sizes, so that no write follows.
    fn forget_behind(&self, file: FileId, bytes: u64) {
        let mut written = self.written.lock().expect("no holder of the pages panics");
        written.retain(|&(of, page), contents| {
            let start = page * FRAME_SIZE;
            if of == file && start < bytes && bytes - start < FRAME_SIZE {
                contents[(bytes - start) as usize..].fill(0);
            }
            of != file || start < bytes
        });
    }

    /// The byte at `offset` of `file` as it was before anything was written back.
    pub fn pristine_byte(file: FileId, offset: u64) -> u8 {
        pristine_word(file, offset / 8).to_le_bytes()[(offset % 8) as usize]
    }

    /// The pages that were written back, as (page number, contents), in ascending order.
    pub fn written_pages(&self, file: FileId) -> Vec<(u64, Vec<u8>)> {
        let written = self.written.lock().expect("no holder of the pages panics");
        let of_file = written.iter().filter(|((of, _), _)| *of == file);
        let mut pages = of_file.map(|(&(_, page), bytes)| (page, bytes.to_vec())).collect::<Vec<_>>();
        pages.sort_unstable();
        pages
    }

    /// The page as it was written back, if it was.
    pub fn written_page(&self, file: FileId, page: u64) -> Option<[u8; PAGE]> {
        self.written.lock().expect("no holder of the pages panics").get(&(file, page)).map(|bytes| **bytes)
    }

    /// Decides which reads fail from now on, counted from 0.
    pub fn set_read_failures(&self, plan: FailurePlan) {
        self.read_failures.set(plan);
    }

    /// Decides which writes fail from now on, counted from 0.
    pub fn set_write_failures(&self, plan: FailurePlan) {
        self.write_failures.set(plan);
    }

    /// Lets one call write so many pages from now on, instead of one.
    pub fn set_longest_run(&self, pages: usize) {
        self.longest_run.store(pages, Ordering::Relaxed);
    }

    /// The calls that wrote since this was last asked: the first page, and how many were written.
    pub fn take_runs(&self) -> Vec<(u64, usize)> {
        std::mem::take(&mut *self.runs.lock().expect("no holder of the runs panics"))
    }

    /// Runs `slow` before each later answer of a size.
    pub fn set_slow_sizes(&self, slow: impl Fn() + Send + Sync + 'static) {
        *self.slow_sizes.write().expect("nothing that passes panics") = Some(Box::new(slow));
    }

    /// Runs `slow` in each later read, before it takes the contents.
    pub fn set_slow_reads(&self, slow: impl Fn() + Send + Sync + 'static) {
        *self.slow_reads.write().expect("nothing that passes panics") = Some(Box::new(slow));
    }

    /// How often the files were read and written.
    pub fn counters(&self) -> FileCounters {
        FileCounters {
            reads: self.reads.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
        }
    }

    /// How many bytes of the page belong to the file.
    fn valid_bytes(&self, file: FileId, page: u64) -> Result<usize, PagerError> {
        valid_of(self.size_of(file).bytes, page)
    }
}

/// How many bytes of the page belong to a file of this size.
fn valid_of(size: u64, page: u64) -> Result<usize, PagerError> {
    let start = page.checked_mul(FRAME_SIZE).ok_or(PagerError::BeyondEnd)?;
    match size.checked_sub(start) {
        None | Some(0) => Err(PagerError::BeyondEnd),
        Some(rest) => Ok(rest.min(FRAME_SIZE) as usize),
    }
}

/// Eight bytes of a file. A hash per file and an odd step keep neighbouring words, pages and files different,
/// and let vector instructions fill a page.
#[inline]
fn pristine_word(file: FileId, index: u64) -> u64 {
    mix(file.0) ^ index.wrapping_mul(0xd6e8_feb8_6659_fd93)
}

impl Pager for SyntheticFiles {
    fn size(&self, file: FileId) -> u64 {
        if let Some(slow) = &*self.slow_sizes.read().expect("nothing that passes panics") {
            slow();
        }
        self.size_of(file).bytes
    }

    fn resize(&self, file: FileId, bytes: u64) -> Result<(), PagerError> {
        if self.write_failures.fail() {
            return Err(PagerError::Io);
        }
        let mut sizes = self.sizes.write().expect("no holder of the sizes panics");
        let size = sizes.entry(file).or_default();
        *size = Size { bytes, pristine: size.pristine.min(bytes) };
        self.forget_behind(file, bytes);
        Ok(())
    }

    fn read(&self, file: FileId, page: u64, bytes: &mut [u8; PAGE]) -> Result<(), PagerError> {
        if let Some(slow) = &*self.slow_reads.read().expect("nothing that passes panics") {
            slow();
        }
        let valid = self.valid_bytes(file, page)?;
        if self.read_failures.fail() {
            return Err(PagerError::Io);
        }
        self.reads.fetch_add(1, Ordering::Relaxed);
        let written = self.written.lock().expect("no holder of the pages panics");
        if let Some(contents) = written.get(&(file, page)) {
            bytes.copy_from_slice(&contents[..]);
            return Ok(());
        }
        drop(written);
        for (index, word) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *word = pristine_word(file, page * (FRAME_SIZE / 8) + index as u64).to_le_bytes();
        }
        let pristine = self.size_of(file).pristine.saturating_sub(page * FRAME_SIZE);
        bytes[valid.min(pristine.min(FRAME_SIZE) as usize)..].fill(0);
        Ok(())
    }

    fn write_run(&self, file: FileId, first: u64, run: &[&[u8; PAGE]]) -> Result<usize, PagerError> {
        let longest = self.longest_run.load(Ordering::Relaxed).max(1);
        let mut count = 0;
        for (page, bytes) in (first..).zip(run).take(longest) {
            match self.write(file, page, bytes) {
                Ok(()) => count += 1,
                Err(error) if count == 0 => return Err(error),
                Err(_) => break,
            }
        }
        self.runs.lock().expect("no holder of the runs panics").push((first, count));
        Ok(count)
    }

    fn write(&self, file: FileId, page: u64, bytes: &[u8; PAGE]) -> Result<(), PagerError> {
        // A file that was truncated meanwhile has no such page; the contract has no other error for that.
        let sizes = self.sizes.read().expect("no holder of the sizes panics");
        let size = sizes.get(&file).copied().unwrap_or_default();
        let valid = valid_of(size.bytes, page).map_err(|_| PagerError::Io)?;
        if self.write_failures.fail() {
            return Err(PagerError::Io);
        }
        self.writes.fetch_add(1, Ordering::Relaxed);
        let mut contents = Box::new(*bytes);
        contents[valid..].fill(0);
        self.written.lock().expect("no holder of the pages panics").insert((file, page), contents);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
