//! Open files: what a descriptor stands for, with its position and flags (an "open file description").

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicU32, Ordering};

use linux_raw_sys::general as abi;

use super::claim::Claim;
use super::dentry::Dentry;
use super::events::{Events, READABLE, WRITABLE, Waiters};
use super::io::{Sink, Source};
use super::locks;
use super::node::{Attributes, Entry, Kind};
use crate::errno::Errno;
use crate::memory::list;
use crate::memory::manager::KernelFile;
use crate::memory::user::UserMemory;
use crate::sync::Mutex;
use crate::task::sleep_lock::SleepLock;

/// How a read or write behaves.
#[derive(Clone, Copy, Default, Debug)]
pub struct Io {
    /// It fails instead of waiting.
    pub nonblocking: bool,
    /// It writes at the end.
    pub append: bool,
    /// What it writes is on the disk when it returns.
    pub sync: bool,
}

/// How a node is opened.
pub struct Opening<'o> {
    /// Its place.
    pub place: &'o Arc<Dentry>,
    /// The flags of `open(2)`.
    pub flags: u32,
}

impl Opening<'_> {
    /// Whether it can be read.
    pub fn reads(&self) -> bool {
        self.flags & abi::O_ACCMODE != abi::O_WRONLY
    }

    /// Whether it can be written.
    pub fn writes(&self) -> bool {
        self.flags & abi::O_ACCMODE != abi::O_RDONLY
    }

    /// Whether opening must not wait.
    pub fn nonblocking(&self) -> bool {
        self.flags & abi::O_NONBLOCK != 0
    }
}

/// A call of `ioctl(2)`.
pub struct Ioctl<'c> {
    /// The program's memory.
    pub memory: UserMemory<'c>,
    /// The number of the request.
    pub request: u32,
    /// Its argument.
    pub argument: u64,
}

/// What a mapping of a file shows.
pub enum Mapping<'f> {
    /// Pages of this file.
    File(&'f KernelFile),
    /// New zeroes (`/dev/zero`).
    Zeroes,
}

/// The use of a node by those that have it open together. Dropped with the last of them.
pub trait File: Any + Send + Sync {
    /// Reads from a position, which it moves. A stream ignores the position.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] where this is not possible, and as the kind of file has them.
    fn read(&self, _position: &mut u64, _to: &mut dyn Sink, _io: Io) -> Result<usize, Errno> {
        Err(Errno::EINVAL)
    }

    /// Writes to a position, which it moves. A stream ignores the position.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn write(&self, _position: &mut u64, _from: &mut dyn Source, _io: Io) -> Result<usize, Errno> {
        Err(Errno::EINVAL)
    }

    /// Whether it has a position. Streams do not.
    fn is_seekable(&self) -> bool {
        true
    }

    /// Its end, where attributes do not show it (disks).
    fn end(&self) -> Option<u64> {
        None
    }

    /// The first position from `at` on with data, or with a hole (`SEEK_DATA`, `SEEK_HOLE`). `None`: the file has
    /// no holes.
    fn next(&self, _at: u64, _hole: bool) -> Option<Option<u64>> {
        None
    }

    /// What it is ready for now.
    fn poll(&self) -> Events {
        READABLE | WRITABLE
    }

    /// What waits for it; `None` for files that are always ready.
    fn waiters(&self) -> Option<&Waiters> {
        None
    }

    /// Serves an `ioctl`.
    ///
    /// # Errors
    /// [`Errno::ENOTTY`] for an unknown request.
    fn ioctl(&self, _call: &Ioctl<'_>) -> Result<u64, Errno> {
        Err(Errno::ENOTTY)
    }

    /// What a mapping shows.
    ///
    /// # Errors
    /// [`Errno::ENODEV`] if it cannot be mapped.
    fn mapping(&self) -> Result<Mapping<'_>, Errno> {
        Err(Errno::ENODEV)
    }

    /// Whether a shared mapping may store to it: a seal may forbid that.
    fn may_map_to_store(&self) -> bool {
        true
    }

    /// The entries of a directory as they were when it was opened or rewound.
    ///
    /// # Errors
    /// [`Errno::ENOTDIR`] for other files.
    fn entries(&self, _rewind: bool) -> Result<Arc<Vec<Entry>>, Errno> {
        Err(Errno::ENOTDIR)
    }

    /// Allocates, or punches a hole (`fallocate(2)`).
    ///
    /// # Errors
    /// [`Errno::ENODEV`] for files without pages.
    fn allocate(&self, _mode: u32, _offset: u64, _bytes: u64) -> Result<(), Errno> {
        Err(Errno::ENODEV)
    }

    /// Its flags changed (`F_SETFL`), or it changes anything else by `fcntl`.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] for a command that this kind of file does not have.
    fn control(&self, _command: u32, _argument: u64) -> Result<u64, Errno> {
        Err(Errno::EINVAL)
    }

    /// Whether writes reach a device (`fsync(2)`).
    ///
    /// # Errors
    /// [`Errno::EINVAL`] for files that cannot be written back.
    fn sync(&self) -> Result<(), Errno> {
        Ok(())
    }
}

/// Is told when an open file goes.
pub trait Closing: Send + Sync {
    /// The file is still there, and goes next.
    fn closing(&self, file: &OpenFile);
}

/// An open file, shared by the descriptors that were duplicated from each other.
pub struct OpenFile {
    file: Box<dyn File>,
    place: Arc<Dentry>,
    flags: AtomicU32,
    position: SleepLock<u64>,
    told: Mutex<Vec<Weak<dyn Closing>>>,
    _claim: Option<Claim>,
}

/// The flags that `F_SETFL` changes.
const CHANGEABLE: u32 = abi::O_APPEND | abi::O_NONBLOCK | abi::O_DIRECT | abi::O_NOATIME | abi::FASYNC;
/// The flags that are not kept: they only say how to open.
const OPEN_ONLY: u32 = abi::O_CREAT | abi::O_EXCL | abi::O_NOCTTY | abi::O_TRUNC | abi::O_CLOEXEC;

impl OpenFile {
    /// A file that was opened at a place with these flags.
    pub fn new(file: Box<dyn File>, place: Arc<Dentry>, flags: u32) -> Arc<Self> {
        Self::with_claim(file, place, flags, None)
    }

    /// The same, which keeps a claim on its node.
    pub fn with_claim(
        file: Box<dyn File>,
        place: Arc<Dentry>,
        flags: u32,
        claim: Option<Claim>,
    ) -> Arc<Self> {
        let flags = AtomicU32::new(flags & !OPEN_ONLY);
        let (position, told) = (SleepLock::new(0), Mutex::default());
        Arc::new(Self { file, place, flags, position, told, _claim: claim })
    }

    /// The file.
    pub fn file(&self) -> &dyn File {
        &*self.file
    }

    /// The file as one of a kind.
    pub fn file_as<F: File>(&self) -> Option<&F> {
        let any: &dyn Any = &*self.file;
        any.downcast_ref()
    }

    /// Tells `listener` when the file goes.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn tell_closing(&self, listener: Weak<dyn Closing>) -> Result<(), Errno> {
        let mut told = self.told.lock();
        told.retain(|other| other.strong_count() > 0 && !other.ptr_eq(&listener));
        list::append(&mut told, [listener])
    }

    /// Where it was opened.
    pub fn place(&self) -> &Arc<Dentry> {
        &self.place
    }

    /// What `fstat` shows.
    pub fn attributes(&self) -> Attributes {
        self.place.node().attributes()
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.place.node().is_directory()
    }

    /// Its flags, as `F_GETFL` shows them.
    pub fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// Changes the flags that can change.
    pub fn set_flags(&self, flags: u32) {
        let change = |old: u32| Some(old & !CHANGEABLE | flags & CHANGEABLE);
        // A closure that always gives a value cannot fail.
        let _ = self.flags.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
    }

    /// Whether it was opened without any right but to name the node (`O_PATH`).
    pub fn is_path_only(&self) -> bool {
        self.flags() & abi::O_PATH != 0
    }

    /// Whether it can be read.
    pub fn can_read(&self) -> bool {
        !self.is_path_only() && self.flags() & abi::O_ACCMODE != abi::O_WRONLY
    }

    /// Whether it can be written.
    pub fn can_write(&self) -> bool {
        !self.is_path_only() && self.flags() & abi::O_ACCMODE != abi::O_RDONLY
    }

    /// How its reads and writes behave.
    pub fn io(&self) -> Io {
        let flags = self.flags();
        Io {
            nonblocking: flags & abi::O_NONBLOCK != 0,
            append: flags & abi::O_APPEND != 0,
            // `O_SYNC` has this bit too.
            sync: flags & abi::O_DSYNC != 0,
        }
    }

    /// Reads at the position.
    ///
    /// # Errors
    /// [`Errno::EBADF`] if it was not opened for reading, and as [`File::read`].
    pub fn read(&self, to: &mut dyn Sink) -> Result<usize, Errno> {
        self.read_as(to, self.io())
    }

    /// The same with the behaviour that a call asks for.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_as(&self, to: &mut dyn Sink, io: Io) -> Result<usize, Errno> {
        self.check_read()?;
        if !self.file.is_seekable() {
            return self.file.read(&mut 0, to, io);
        }
        self.file.read(&mut self.position.lock(), to, io)
    }

    /// Writes at the position.
    ///
    /// # Errors
    /// [`Errno::EBADF`] if it was not opened for writing, and as [`File::write`].
    pub fn write(&self, from: &mut dyn Source) -> Result<usize, Errno> {
        self.write_as(from, self.io())
    }

    /// The same with the behaviour that a call asks for.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn write_as(&self, from: &mut dyn Source, io: Io) -> Result<usize, Errno> {
        self.check_write()?;
        if !self.file.is_seekable() {
            return self.file.write(&mut 0, from, io);
        }
        let count = self.file.write(&mut self.position.lock(), from, io)?;
        self.written(count, io)
    }

    /// Reads at an offset.
    ///
    /// # Errors
    /// As [`Self::read`]; [`Errno::ESPIPE`] for a stream.
    pub fn read_at(&self, offset: u64, to: &mut dyn Sink, io: Io) -> Result<usize, Errno> {
        self.check_read()?;
        self.check_seekable()?;
        check_end(offset, to.left())?;
        self.file.read(&mut { offset }, to, io)
    }

    /// Writes at an offset.
    ///
    /// # Errors
    /// As [`Self::write`]; [`Errno::ESPIPE`] for a stream.
    pub fn write_at(&self, offset: u64, from: &mut dyn Source, io: Io) -> Result<usize, Errno> {
        self.check_write()?;
        self.check_seekable()?;
        check_end(offset, from.left())?;
        let count = self.file.write(&mut { offset }, from, io)?;
        self.written(count, io)
    }

    /// After so many bytes were written. A process without the right to keep them takes the bits from the file with which
    /// a program runs as its owner.
    fn written(&self, count: usize, io: Io) -> Result<usize, Errno> {
        if count > 0 {
            self.place.node().drop_set_ids()?;
            if io.sync {
                self.file.sync()?;
            }
        }
        Ok(count)
    }

    /// The position, to be used or moved under its lock.
    pub fn position(&self) -> &SleepLock<u64> {
        &self.position
    }

    /// Fails for a file that cannot be read.
    ///
    /// # Errors
    /// [`Errno::EBADF`]; [`Errno::EISDIR`] for a directory.
    pub fn check_read(&self) -> Result<(), Errno> {
        if !self.can_read() {
            return Err(Errno::EBADF);
        }
        if self.is_directory() { Err(Errno::EISDIR) } else { Ok(()) }
    }

    /// Fails for a file that cannot be written.
    ///
    /// # Errors
    /// [`Errno::EBADF`].
    pub fn check_write(&self) -> Result<(), Errno> {
        if self.can_write() { Ok(()) } else { Err(Errno::EBADF) }
    }

    fn check_seekable(&self) -> Result<(), Errno> {
        if self.file.is_seekable() { Ok(()) } else { Err(Errno::ESPIPE) }
    }

    /// Whether it is a regular file.
    pub fn is_regular(&self) -> bool {
        self.attributes().kind == Kind::Regular
    }
}

/// Fails for a range that passes the largest offset.
fn check_end(offset: u64, bytes: usize) -> Result<(), Errno> {
    let end = offset.checked_add(bytes as u64).filter(|end| *end <= i64::MAX as u64);
    end.map(drop).ok_or(Errno::EINVAL)
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        for listener in core::mem::take(&mut *self.told.lock()) {
            if let Some(listener) = listener.upgrade() {
                listener.closing(self);
            }
        }
        locks::release_open_file(self);
    }
}
