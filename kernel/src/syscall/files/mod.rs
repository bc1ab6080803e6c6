//! The calls about files, by verb.

mod access;
mod attributes;
mod control;
mod copy;
mod create;
mod descriptors;
mod directory;
mod epoll;
mod event_fd;
mod file_system;
mod locks;
mod memfd;
mod open;
mod pipe;
mod poll;
mod read_write;
mod rename;
mod seek;
mod select;
mod size;
mod stat;
mod sync;
mod vector;
mod xattr;

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general as abi;

use super::Call;
use crate::errno::Errno;
use crate::files::context::{FsContext, Places};
use crate::files::dentry::Dentry;
use crate::files::open::OpenFile;
use crate::files::table::FileTable;
use crate::files::walk::{Follow, Found, PATH_BYTES, Walk};

/// `AT_FDCWD`: paths start in the working directory.
const CURRENT: i32 = abi::AT_FDCWD;

impl Call<'_> {
    /// The descriptors of the process.
    pub(super) fn table(&self) -> Arc<FileTable> {
        self.process().files.lock().clone()
    }

    /// The open file whose descriptor is this argument. One that was opened to name a node alone does not count.
    pub(super) fn file(&self, index: usize) -> Result<Arc<OpenFile>, Errno> {
        self.file_of(self.arguments[index])
    }

    /// The same for a descriptor.
    pub(super) fn file_of(&self, descriptor: u64) -> Result<Arc<OpenFile>, Errno> {
        let file = self.table().get(descriptor)?;
        if file.is_path_only() { Err(Errno::EBADF) } else { Ok(file) }
    }

    fn fs_context(&self) -> Arc<FsContext> {
        self.process().fs.lock().clone().expect("a program's process has one until it ends")
    }

    fn places(&self) -> Places {
        self.fs_context().places()
    }

    /// The path that this argument points to.
    fn path(&self, index: usize) -> Result<Vec<u8>, Errno> {
        self.memory.read_string(self.addr(index), PATH_BYTES, Errno::ENAMETOOLONG)
    }

    /// Where relative paths start: at this descriptor.
    fn base(&self, descriptor: u64, path: &[u8]) -> Result<Arc<Dentry>, Errno> {
        if path.first() == Some(&b'/') || descriptor as i32 == CURRENT {
            return Ok(self.places().current);
        }
        let place = self.table().get(descriptor)?.place().clone();
        if place.node().is_directory() || path.is_empty() { Ok(place) } else { Err(Errno::ENOTDIR) }
    }

    /// Walks along a path that starts at a descriptor.
    fn walk(&self, descriptor: u64, path: &[u8], follow: Follow) -> Result<Found, Errno> {
        let base = self.base(descriptor, path)?;
        Walk { root: self.places().root, base, follow, resolve: 0 }.find(path)
    }

    /// The place at a path.
    pub(super) fn existing_node(&self, path: &[u8]) -> Result<Arc<Dentry>, Errno> {
        self.place(current(), path, 0)
    }

    /// The place at a path that starts at a descriptor, by the flags `AT_SYMLINK_NOFOLLOW` and `AT_EMPTY_PATH`.
    fn place(&self, descriptor: u64, path: &[u8], flags: u64) -> Result<Arc<Dentry>, Errno> {
        if path.is_empty() && flags as u32 & abi::AT_EMPTY_PATH != 0 {
            return self.base(descriptor, path);
        }
        let follow = Follow::when(flags as u32 & abi::AT_SYMLINK_NOFOLLOW == 0);
        self.walk(descriptor, path, follow)?.existing()
    }
}

/// `AT_FDCWD` as an argument.
fn current() -> u64 {
    CURRENT as u64
}

/// Fails if other flags than these are set.
fn check_flags(flags: u64, known: u32) -> Result<(), Errno> {
    if flags as u32 & !known == 0 { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Looks a name up and changes it. Does so again as long as another task changes the name in between.
fn again_while_stale(mut attempt: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    loop {
        match attempt() {
            Err(Errno::ESTALE) => {}
            done => return done,
        }
    }
}
