//! The contents of a regular file: pages in Quire's page cache, which mappings show too.

use core::sync::atomic::{AtomicU32, Ordering};

use linux_raw_sys::general as abi;
use quire::hugetlb::HugeSize;
use quire::limits::FRAME_SIZE;
use quire::platform::FileId;
use spin::Once;

use crate::errno::Errno;
use crate::files::archive;
use crate::files::io::{Chunk, Sink, Source};
use crate::files::limits;
use crate::files::stored::{self, Stored};
use crate::memory::manager::{KernelFile, manager};
use crate::task::sleep_lock::{SleepGuard, SleepLock};

/// The size of the units of `st_blocks`.
const BLOCK: u64 = 512;

/// Where contents come from before they are written.
#[derive(Clone, Copy)]
pub enum Contents {
    /// There are none: the file is shared memory.
    Memory,
    /// There are none: the file is of huge pages.
    Huge(HugeSize),
    /// A file of the initial RAM disk. Its pages are read from there; written ones stay in the page cache.
    Archive(FileId),
    /// A file on a disk, from which its pages are read, and to which they are written.
    Stored(Stored),
}

/// The contents of a file. It takes no pages until it is opened, and those of the archive only when they are used.
pub struct Body {
    contents: Contents,
    file: Once<KernelFile>,
    /// One task at a time writes or changes the size.
    writing: SleepLock<()>,
    /// What can no longer be done with the file (`F_SEAL_*`).
    seals: AtomicU32,
}

impl Body {
    pub fn new(contents: Contents) -> Self {
        Self::with(contents, Once::new())
    }

    /// A body of pages that are there already.
    pub fn of(contents: Contents, file: KernelFile) -> Self {
        Self::with(contents, Once::initialized(file))
    }

    fn with(contents: Contents, file: Once<KernelFile>) -> Self {
        Self { contents, file, writing: SleepLock::new(()), seals: AtomicU32::new(abi::F_SEAL_SEAL) }
    }

    /// The file as Quire knows it, if it was opened.
    pub fn opened(&self) -> Option<&KernelFile> {
        self.file.get()
    }

    /// The file as Quire knows it.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn file(&self) -> Result<&KernelFile, Errno> {
        self.file.try_call_once(|| match self.contents {
            Contents::Memory => Ok(manager().shmem(0)?),
            Contents::Huge(size) => Ok(manager().huge_file(size, 0)?),
            Contents::Archive(id) => Ok(manager().open(id)?),
            Contents::Stored(stored) => Ok(manager().open(stored.id())?),
        })
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        match (self.file.get(), self.contents) {
            (Some(file), _) => file.size(),
            (None, Contents::Memory | Contents::Huge(_)) => 0,
            (None, Contents::Archive(id)) => archive::size(id),
            (None, Contents::Stored(stored)) => stored.size(),
        }
    }

    /// What it takes, in units of 512 bytes.
    pub fn blocks(&self) -> u64 {
        let pages = match (self.file.get(), self.contents) {
            (_, Contents::Archive(_) | Contents::Stored(_)) => self.size().div_ceil(FRAME_SIZE),
            (Some(file), Contents::Memory) => file.resident(),
            (Some(file), Contents::Huge(size)) => file.huge_pages().0 * size.order().frames(),
            (None, Contents::Memory | Contents::Huge(_)) => 0,
        };
        pages * (FRAME_SIZE / BLOCK)
    }

    /// Reads from a position, which it moves.
    pub fn read(&self, position: &mut u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        let left = self.size().saturating_sub(*position);
        let wanted = to.left().min(usize::try_from(left).unwrap_or(usize::MAX));
        let mut chunk = Chunk::for_bytes(wanted)?;
        let mut done = 0;
        while done < wanted {
            let part = chunk.len().min(wanted - done);
            let outcome = self.file()?.read_at(*position, &mut chunk[..part]).map_err(Errno::from);
            match outcome.and_then(|got| Ok((got, to.put(&chunk[..got])?))) {
                Ok((got, put)) => {
                    *position += put as u64;
                    done += put;
                    self.relieve(0);
                    if put < got || got < part {
                        break;
                    }
                }
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }

    /// Writes to a position, or at the end, and moves the position behind what it wrote.
    pub fn write(
        &self,
        position: &mut u64,
        from: &mut dyn Source,
        append: bool,
        limit: u64,
    ) -> Result<usize, Errno> {
        let _writing = self.writing.lock();
        let size = self.size();
        let start = if append { size } else { *position };
        // Linux has no way to write into huge pages but mappings.
        if let Contents::Huge(_) = self.contents {
            return Err(Errno::EINVAL);
        }
        if from.left() == 0 {
            return Ok(0);
        }
        if self.has_seal(abi::F_SEAL_WRITE | abi::F_SEAL_FUTURE_WRITE) {
            return Err(Errno::EPERM);
        }
        let limit = if self.has_seal(abi::F_SEAL_GROW) {
            if start >= size {
                return Err(Errno::EPERM);
            }
            size
        } else {
            limit
        };
        if start >= limit {
            // The limit may be the process's, or only that of files.
            limits::check_file_size(start.saturating_add(1))?;
            return Err(Errno::EFBIG);
        }
        let wanted = from.left().min(usize::try_from(limit - start).unwrap_or(usize::MAX));
        let mut chunk = Chunk::for_bytes(wanted)?;
        let mut done = 0;
        while done < wanted {
            let part = chunk.len().min(wanted - done);
            let taken = from.take(&mut chunk[..part]);
            let at = start + done as u64;
            let outcome = taken.and_then(|taken| {
                let fits = self.prepare(at, taken)?;
                Ok((taken, self.file()?.write_at(at, &chunk[..fits])?))
            });
            match outcome {
                Ok((taken, written)) => {
                    done += written;
                    self.relieve(written);
                    if taken < part || written < taken {
                        break;
                    }
                }
                Err(_) if done > 0 => break,
                Err(errno) => return Err(self.out_of_space(errno)),
            }
        }
        *position = start + done as u64;
        Ok(done)
    }

    /// Sets the size.
    pub fn truncate(&self, bytes: u64) -> Result<(), Errno> {
        let _writing = self.writing.lock();
        let size = self.size();
        if bytes == size {
            return Ok(());
        }
        self.check_seal(if bytes < size { abi::F_SEAL_SHRINK } else { abi::F_SEAL_GROW })?;
        Ok(self.file()?.truncate(bytes)?)
    }

    /// Allocates the pages of a range; the size grows with it unless `keep_size`.
    pub fn allocate(&self, start: u64, end: u64, keep_size: bool) -> Result<(), Errno> {
        let _writing = self.writing.lock();
        let size = self.size();
        if end > size {
            self.check_seal(abi::F_SEAL_GROW)?;
        }
        match self.contents {
            Contents::Memory | Contents::Huge(_) if keep_size => {
                let end = end.min(size);
                if start < end {
                    self.file()?.allocate(start..end).map_err(|error| self.out_of_space(error.into()))?;
                }
            }
            Contents::Memory | Contents::Huge(_) => {
                self.file()?.allocate(start..end).map_err(|error| self.out_of_space(error.into()))?
            }
            Contents::Stored(_) => return Err(Errno::EOPNOTSUPP),
            // Pages of the archive are there already.
            Contents::Archive(_) if end > size && !keep_size => self.file()?.truncate(end)?,
            Contents::Archive(_) => {}
        }
        Ok(())
    }

    /// Keeps the contents from being written, unless a task is about to: it may have prepared a part of the file.
    pub fn pause_writes(&self) -> Option<SleepGuard<'_, ()>> {
        self.writing.try_lock()
    }

    fn has_seal(&self, seals: u32) -> bool {
        self.seals() & seals != 0
    }

    fn check_seal(&self, seals: u32) -> Result<(), Errno> {
        if self.has_seal(seals) { Err(Errno::EPERM) } else { Ok(()) }
    }

    /// What can no longer be done with the file (`F_GET_SEALS`).
    pub fn seals(&self) -> u32 {
        self.seals.load(Ordering::Relaxed)
    }

    /// Lets a new file get seals, as these flags of `memfd_create` say.
    pub fn allow_seals(&self, flags: u32) {
        let seals = match (flags & abi::MFD_NOEXEC_SEAL != 0, flags & abi::MFD_ALLOW_SEALING != 0) {
            (true, _) => abi::F_SEAL_EXEC,
            (false, true) => 0,
            (false, false) => abi::F_SEAL_SEAL,
        };
        self.seals.store(seals, Ordering::Relaxed);
    }

    /// Adds seals (`F_ADD_SEALS`). `mapped`: whether a program may store to it through a mapping.
    pub fn add_seals(&self, seals: u32, mapped: impl Fn() -> bool) -> Result<(), Errno> {
        const KNOWN: u32 = abi::F_SEAL_SEAL
            | abi::F_SEAL_SHRINK
            | abi::F_SEAL_GROW
            | abi::F_SEAL_WRITE
            | abi::F_SEAL_FUTURE_WRITE
            | abi::F_SEAL_EXEC;
        if seals & !KNOWN != 0 {
            return Err(Errno::EINVAL);
        }
        let _writing = self.writing.lock();
        self.check_seal(abi::F_SEAL_SEAL)?;
        if seals & abi::F_SEAL_WRITE != 0 && !self.has_seal(abi::F_SEAL_WRITE) && mapped() {
            return Err(Errno::EBUSY);
        }
        self.seals.fetch_or(seals, Ordering::Relaxed);
        Ok(())
    }

    /// Makes a range of bytes zero, without memory where whole pages are concerned.
    pub fn punch(&self, start: u64, end: u64) -> Result<(), Errno> {
        let _writing = self.writing.lock();
        self.check_seal(abi::F_SEAL_WRITE | abi::F_SEAL_FUTURE_WRITE)?;
        if let Contents::Memory | Contents::Huge(_) = self.contents {
            return Ok(self.file()?.punch_hole(start..end)?);
        }
        let zeroes = [0; 256];
        let mut at = start;
        let end = end.min(self.size());
        while at < end {
            let part = zeroes.len().min((end - at) as usize);
            at += self.file()?.write_at(at, &zeroes[..part])? as u64;
        }
        Ok(())
    }

    /// Prepares a file on a disk for bytes that are about to be written, and returns how many fit.
    fn prepare(&self, at: u64, bytes: usize) -> Result<usize, Errno> {
        match self.contents {
            Contents::Stored(stored) if bytes > 0 => stored.prepare(at, bytes),
            _ => Ok(bytes),
        }
    }

    /// After a part of a file on a disk was read or written: its pages are not to take all memory.
    fn relieve(&self, written: usize) {
        if let Contents::Stored(_) = self.contents {
            // What cannot be written back may be another file's; `fsync` of that one says so.
            let _ = stored::relieve(written);
        }
    }

    /// A file system in memory that is out of memory has no space left.
    fn out_of_space(&self, errno: Errno) -> Errno {
        let is_memory = !matches!(self.contents, Contents::Stored(_));
        if is_memory && errno == Errno::ENOMEM { Errno::ENOSPC } else { errno }
    }
}
