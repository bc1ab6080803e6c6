//! Opening and closing files.

use alloc::sync::Arc;
use core::mem::size_of;

use linux_raw_sys::general as abi;

use super::current;
use crate::errno::Errno;
use crate::files::claim::Claim;
use crate::files::dentry::Dentry;
use crate::files::mounts;
use crate::files::node::{Kind, New, NewKind, Node};
use crate::files::open::{File, Io, OpenFile, Opening};
use crate::files::walk::{Follow, Found, Walk};
use crate::syscall::{Answer, Call};
use crate::task::credentials::{EXECUTE, READ, WRITE, check_file};

/// `__O_TMPFILE`: with `O_DIRECTORY` it makes `O_TMPFILE`.
const UNNAMED: u32 = 0o20000000;
const PERMISSIONS: u32 = 0o7777;
/// The flags of `close_range(2)`.
const CLOSE_RANGE_UNSHARE: u32 = 2;
const CLOSE_RANGE_CLOEXEC: u32 = 4;
/// The flags that `openat2` knows.
const KNOWN: u32 = abi::O_ACCMODE
    | abi::O_CREAT
    | abi::O_EXCL
    | abi::O_NOCTTY
    | abi::O_TRUNC
    | abi::O_APPEND
    | abi::O_NONBLOCK
    | abi::O_DSYNC
    | abi::O_SYNC
    | abi::FASYNC
    | abi::O_DIRECT
    | abi::O_LARGEFILE
    | abi::O_DIRECTORY
    | abi::O_NOFOLLOW
    | abi::O_NOATIME
    | abi::O_CLOEXEC
    | abi::O_PATH
    | UNNAMED;
const KNOWN_RESOLVE: u64 = (abi::RESOLVE_NO_XDEV
    | abi::RESOLVE_NO_MAGICLINKS
    | abi::RESOLVE_NO_SYMLINKS
    | abi::RESOLVE_BENEATH
    | abi::RESOLVE_IN_ROOT
    | abi::RESOLVE_CACHED) as u64;

/// A request to open.
struct Request {
    flags: u32,
    mode: u32,
    resolve: u32,
}

impl Request {
    fn has(&self, flag: u32) -> bool {
        self.flags & flag == flag
    }
}

impl Call<'_> {
    pub(in crate::syscall) fn open(&self) -> Answer {
        let [_, flags, mode, ..] = self.arguments;
        self.open_at(current(), 0, flags as u32, mode as u32)
    }

    pub(in crate::syscall) fn openat(&self) -> Answer {
        let [directory, _, flags, mode, ..] = self.arguments;
        self.open_at(directory, 1, flags as u32, mode as u32)
    }

    pub(in crate::syscall) fn creat(&self) -> Answer {
        let flags = abi::O_CREAT | abi::O_WRONLY | abi::O_TRUNC;
        self.open_at(current(), 0, flags, self.arguments[1] as u32)
    }

    /// `openat2`: as `openat`, with unknown flags refused and limits for the walk.
    pub(in crate::syscall) fn openat2(&self) -> Answer {
        let [directory, _, how, bytes, ..] = self.arguments;
        if bytes < size_of::<abi::open_how>() as u64 {
            return Err(Errno::EINVAL);
        }
        let [flags, mode, resolve] = self.load_words(how)?;
        let creates = flags as u32 & (abi::O_CREAT | UNNAMED) != 0;
        let sound = flags & !u64::from(KNOWN) == 0
            && resolve & !KNOWN_RESOLVE == 0
            && (creates && mode & !u64::from(PERMISSIONS) == 0 || mode == 0);
        if !sound {
            return Err(Errno::EINVAL);
        }
        if resolve as u32 & abi::RESOLVE_CACHED != 0 {
            return Err(Errno::EAGAIN);
        }
        self.open_by(
            directory,
            1,
            Request { flags: flags as u32, mode: mode as u32, resolve: resolve as u32 },
        )
    }

    fn open_at(&self, directory: u64, path: usize, flags: u32, mode: u32) -> Answer {
        self.open_by(directory, path, Request { flags, mode: mode & PERMISSIONS, resolve: 0 })
    }

    fn open_by(&self, directory: u64, path: usize, mut request: Request) -> Answer {
        if request.has(abi::O_PATH) {
            request.flags &= abi::O_PATH | abi::O_DIRECTORY | abi::O_NOFOLLOW | abi::O_CLOEXEC;
        } else {
            request.flags |= abi::O_LARGEFILE;
        }
        let path = self.path(path)?;
        let base = self.base(directory, &path)?;
        let exclusive = request.has(abi::O_CREAT | abi::O_EXCL);
        let follow = !request.has(abi::O_NOFOLLOW) && !exclusive;
        let walk =
            Walk { root: self.places().root, base, follow: Follow::when(follow), resolve: request.resolve };
        let file = if request.has(UNNAMED) {
            self.open_unnamed(walk.find(&path)?, &request)?
        } else {
            self.open_found(walk.find(&path)?, &request)?
        };
        self.table().add(file, request.has(abi::O_CLOEXEC))
    }

    fn open_found(&self, found: Found, request: &Request) -> Result<Arc<OpenFile>, Errno> {
        let (place, created) = match &found.place {
            Some(_) if request.has(abi::O_CREAT | abi::O_EXCL) => return Err(Errno::EEXIST),
            Some(place) => (place.clone(), false),
            None if request.has(abi::O_CREAT) => self.create_regular(&found, request)?,
            None => return Err(Errno::ENOENT),
        };
        let kind = place.node().kind();
        if (found.slash || request.has(abi::O_DIRECTORY)) && kind != Kind::Directory {
            return Err(if kind == Kind::Symlink && !found.slash { Errno::ELOOP } else { Errno::ENOTDIR });
        }
        if request.has(abi::O_PATH) {
            return Ok(OpenFile::new(alloc::boxed::Box::new(PathOnly), place, request.flags));
        }
        let writes = request.flags & abi::O_ACCMODE != abi::O_RDONLY;
        match kind {
            Kind::Symlink => return Err(Errno::ELOOP),
            Kind::Directory if writes || request.has(abi::O_CREAT) => return Err(Errno::EISDIR),
            Kind::CharDevice(_) | Kind::BlockDevice(_) if mounts::has_flag(&place, abi::MS_NODEV) => {
                return Err(Errno::EACCES);
            }
            _ => {}
        }
        if !created {
            let (reads, truncates) =
                (request.flags & abi::O_ACCMODE != abi::O_WRONLY, request.has(abi::O_TRUNC));
            let wanted = if reads { READ } else { 0 } | if writes || truncates { WRITE } else { 0 };
            check_file(wanted, || place.node().attributes())?;
        }
        let claim = writes.then(|| Claim::to_write(place.node())).transpose()?;
        let opening = Opening { place: &place, flags: request.flags };
        let file = place.node().clone().open(&opening)?;
        if request.has(abi::O_TRUNC) && kind == Kind::Regular && !created {
            let _claim = Claim::to_write(place.node())?;
            place.node().truncate(0)?;
            place.node().drop_set_ids()?;
        }
        Ok(OpenFile::with_claim(file, place, request.flags, claim))
    }

    /// Makes a regular file, or finds the one that another task has made meanwhile.
    fn create_regular(&self, found: &Found, request: &Request) -> Result<(Arc<Dentry>, bool), Errno> {
        if found.slash {
            return Err(Errno::EISDIR);
        }
        if request.has(abi::O_DIRECTORY) {
            return Err(Errno::EINVAL);
        }
        let directory = found.writable_directory()?;
        let mode = request.mode & !self.places().umask;
        let new = New::within(&found.directory.node().attributes(), NewKind::Other(Kind::Regular), mode);
        match directory.create(&found.directory, &found.name, new) {
            Ok(place) => Ok((place, true)),
            Err(Errno::EEXIST) if !request.has(abi::O_EXCL) => {
                Ok((directory.find(&found.directory, &found.name)?, false))
            }
            // A file system whose names are fixed.
            Err(Errno::EPERM) => Err(Errno::EACCES),
            Err(errno) => Err(errno),
        }
    }

    /// `O_TMPFILE`: a file without a name, in the file system of a directory.
    fn open_unnamed(&self, found: Found, request: &Request) -> Result<Arc<OpenFile>, Errno> {
        let writes = request.flags & abi::O_ACCMODE != abi::O_RDONLY;
        if !request.has(abi::O_DIRECTORY) || !writes || request.has(abi::O_CREAT) {
            return Err(Errno::EINVAL);
        }
        let directory = found.existing()?;
        let target = directory.node().directory()?;
        let attributes = directory.node().attributes();
        check_file(WRITE | EXECUTE, || attributes)?;
        let mode = request.mode & !self.places().umask;
        let new = New::within(&attributes, NewKind::Other(Kind::Regular), mode);
        let node: Arc<dyn Node> = target.create_unnamed(new, !request.has(abi::O_EXCL))?;
        let name = alloc::format!("#{}", node.attributes().number);
        let place = Dentry::new(&directory, name.as_bytes().into(), node);
        place.set_removed();
        let flags = request.flags & !(UNNAMED | abi::O_DIRECTORY);
        let file = place.node().clone().open(&Opening { place: &place, flags })?;
        let claim = Some(Claim::to_write(place.node())?);
        Ok(OpenFile::with_claim(file, place, flags, claim))
    }

    pub(in crate::syscall) fn close(&self) -> Answer {
        self.table().close(self.arguments[0])?;
        Ok(0)
    }

    /// The process gets descriptors of its own if it shares them.
    pub(in crate::syscall) fn unshare_files(&self) -> Result<(), Errno> {
        let shared = self.table();
        // The process has one reference, and `shared` is one. Locks of the process go with the table that has them.
        if Arc::strong_count(&shared) > 2 {
            let own = shared.copy()?;
            let old = core::mem::replace(&mut *self.process().files.lock(), own);
            drop(old);
        }
        Ok(())
    }

    /// `close_range`
    pub(in crate::syscall) fn close_range(&self) -> Answer {
        let [first, last, flags, ..] = self.arguments;
        let (first, last) = (u64::from(first as u32), u64::from(last as u32));
        super::check_flags(flags, CLOSE_RANGE_CLOEXEC | CLOSE_RANGE_UNSHARE)?;
        if first > last {
            return Err(Errno::EINVAL);
        }
        if flags as u32 & CLOSE_RANGE_UNSHARE != 0 {
            self.unshare_files()?;
        }
        let table = self.table();
        match flags as u32 & CLOSE_RANGE_CLOEXEC {
            0 => table.close_range(first, last),
            _ => table.mark_range(first, last),
        }
        Ok(0)
    }
}

/// A file that was opened to name a node alone.
struct PathOnly;

impl File for PathOnly {
    fn read(&self, _: &mut u64, _: &mut dyn crate::files::io::Sink, _: Io) -> Result<usize, Errno> {
        Err(Errno::EBADF)
    }
}
