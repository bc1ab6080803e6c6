//! Making and removing names: directories, links, special files.

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general as abi;

use super::{again_while_stale, check_flags, current};
use crate::errno::Errno;
use crate::files::dentry::Dentry;
use crate::files::node::{Kind, New, NewKind};
use crate::files::walk::{Follow, Found};
use crate::syscall::{Answer, Call};
use crate::task::credentials::{self, Right};

const PERMISSIONS: u32 = 0o7777;
/// What a new directory may have: set-group-id comes from its parent alone.
const DIRECTORY_PERMISSIONS: u32 = 0o1777;

impl Call<'_> {
    pub(in crate::syscall) fn mkdir(&self) -> Answer {
        self.mkdir_at(current(), 0, self.arguments[1])
    }

    pub(in crate::syscall) fn mkdirat(&self) -> Answer {
        self.mkdir_at(self.arguments[0], 1, self.arguments[2])
    }

    fn mkdir_at(&self, directory: u64, path: usize, mode: u64) -> Answer {
        let mut found = self.walk(directory, &self.path(path)?, Follow::Never)?;
        found.slash = false;
        let mode = mode as u32 & DIRECTORY_PERMISSIONS & !self.places().umask;
        make(&found, NewKind::Other(Kind::Directory), mode)?;
        Ok(0)
    }

    pub(in crate::syscall) fn mknod(&self) -> Answer {
        let [_, mode, device, ..] = self.arguments;
        self.mknod_at(current(), 0, mode as u32, device)
    }

    pub(in crate::syscall) fn mknodat(&self) -> Answer {
        let [directory, _, mode, device, ..] = self.arguments;
        self.mknod_at(directory, 1, mode as u32, device)
    }

    fn mknod_at(&self, directory: u64, path: usize, mode: u32, device: u64) -> Answer {
        let kind = match mode & abi::S_IFMT {
            0 => Kind::Regular,
            abi::S_IFDIR => return Err(Errno::EPERM),
            abi::S_IFLNK => return Err(Errno::EINVAL),
            _ => Kind::of_mode(mode, u64::from(device as u32)).ok_or(Errno::EINVAL)?,
        };
        self.make_node_at(directory, &self.path(path)?, mode, kind)?;
        Ok(0)
    }

    /// Makes a node that is not a directory.
    pub(in crate::syscall) fn make_node(
        &self,
        path: &[u8],
        mode: u32,
        kind: Kind,
    ) -> Result<Arc<Dentry>, Errno> {
        self.make_node_at(current(), path, mode, kind)
    }

    fn make_node_at(&self, directory: u64, path: &[u8], mode: u32, kind: Kind) -> Result<Arc<Dentry>, Errno> {
        let found = self.walk(directory, path, Follow::Never)?;
        let mode = mode & PERMISSIONS & !self.places().umask;
        make(&found, NewKind::Other(kind), mode)
    }

    pub(in crate::syscall) fn symlink(&self) -> Answer {
        self.symlink_at(current(), 1)
    }

    pub(in crate::syscall) fn symlinkat(&self) -> Answer {
        self.symlink_at(self.arguments[1], 2)
    }

    fn symlink_at(&self, directory: u64, path: usize) -> Answer {
        let target: Vec<u8> = self.path(0)?;
        if target.is_empty() {
            return Err(Errno::ENOENT);
        }
        let found = self.walk(directory, &self.path(path)?, Follow::Never)?;
        make(&found, NewKind::Symlink(target.into()), 0o777)?;
        Ok(0)
    }

    pub(in crate::syscall) fn link(&self) -> Answer {
        self.link_at((current(), 0), (current(), 1), 0)
    }

    pub(in crate::syscall) fn linkat(&self) -> Answer {
        let [from, _, to, _, flags, _] = self.arguments;
        check_flags(flags, abi::AT_SYMLINK_FOLLOW | abi::AT_EMPTY_PATH)?;
        self.link_at((from, 1), (to, 3), flags)
    }

    fn link_at(&self, (from, old): (u64, usize), (to, new): (u64, usize), flags: u64) -> Answer {
        let follow = flags as u32 & abi::AT_SYMLINK_FOLLOW != 0;
        let nofollow = if follow { 0 } else { u64::from(abi::AT_SYMLINK_NOFOLLOW) };
        let flags = flags & u64::from(abi::AT_EMPTY_PATH) | nofollow;
        let place = self.place(from, &self.path(old)?, flags)?;
        let found = self.walk(to, &self.path(new)?, Follow::Never)?;
        if found.place.is_some() {
            return Err(Errno::EEXIST);
        }
        if found.slash {
            return Err(Errno::ENOENT);
        }
        found.writable_directory()?.link(&found.directory, &found.name, place.node())?;
        Ok(0)
    }

    pub(in crate::syscall) fn unlink(&self) -> Answer {
        self.remove(current(), 0, false)
    }

    pub(in crate::syscall) fn rmdir(&self) -> Answer {
        self.remove(current(), 0, true)
    }

    pub(in crate::syscall) fn unlinkat(&self) -> Answer {
        let [directory, _, flags, ..] = self.arguments;
        check_flags(flags, abi::AT_REMOVEDIR)?;
        self.remove(directory, 1, flags as u32 & abi::AT_REMOVEDIR != 0)
    }

    fn remove(&self, base: u64, path: usize, directory: bool) -> Answer {
        let path = self.path(path)?;
        let found = self.walk(base, &path, Follow::Never)?;
        if found.name.is_empty() {
            return Err(unnamed_error(&path, directory));
        }
        let place = found.place.as_ref().ok_or(Errno::ENOENT)?;
        if found.slash && !directory {
            return Err(if place.node().is_directory() { Errno::EISDIR } else { Errno::ENOTDIR });
        }
        if found.slash && !place.node().is_directory() {
            return Err(Errno::ENOTDIR);
        }
        again_while_stale(|| {
            // The name must be the one in this directory, not the root of what is mounted there.
            let entry = found.directory.node().directory()?.find(&found.directory, &found.name)?;
            if !Arc::ptr_eq(&entry.clone().covered(), &entry) {
                return Err(Errno::EBUSY);
            }
            found.directory_without(&entry)?.remove(&found.name, &entry, directory)
        })?;
        Ok(0)
    }
}

/// Makes a node where none is.
fn make(found: &Found, kind: NewKind, mode: u32) -> Result<Arc<Dentry>, Errno> {
    if found.place.is_some() {
        return Err(Errno::EEXIST);
    }
    if found.slash {
        return Err(Errno::ENOENT);
    }
    let directory = found.writable_directory()?;
    // A character device with the number 0 stands for no device.
    if let NewKind::Other(Kind::CharDevice(1..) | Kind::BlockDevice(_)) = kind {
        credentials::check(Right::MakeDevice)?;
    }
    let new = New::within(&found.directory.node().attributes(), kind, mode);
    directory.create(&found.directory, &found.name, new)
}

/// Why the last name of a path, which is `.`, `..` or the root, cannot be removed.
fn unnamed_error(path: &[u8], directory: bool) -> Errno {
    if !directory {
        return Errno::EISDIR;
    }
    let trimmed = path.iter().rposition(|&byte| byte != b'/').map_or(&[][..], |end| &path[..=end]);
    if trimmed.is_empty() {
        Errno::EBUSY
    } else if trimmed.ends_with(b"..") {
        Errno::ENOTEMPTY
    } else {
        Errno::EINVAL
    }
}
