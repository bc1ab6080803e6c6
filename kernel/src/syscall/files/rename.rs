//! Renames.

use alloc::sync::Arc;

use linux_raw_sys::general as abi;

use super::{again_while_stale, check_flags, current};
use crate::errno::Errno;
use crate::files::dentry::Dentry;
use crate::files::node::Rename;
use crate::files::walk::{Follow, Found};
use crate::syscall::{Answer, Call};
use crate::task::credentials::{WRITE, check_file};

impl Call<'_> {
    pub(in crate::syscall) fn rename(&self) -> Answer {
        self.rename_at((current(), 0), (current(), 1), Rename::Replace)
    }

    pub(in crate::syscall) fn renameat(&self) -> Answer {
        let [from, _, to, ..] = self.arguments;
        self.rename_at((from, 1), (to, 3), Rename::Replace)
    }

    pub(in crate::syscall) fn renameat2(&self) -> Answer {
        let [from, _, to, _, flags, _] = self.arguments;
        check_flags(flags, abi::RENAME_NOREPLACE | abi::RENAME_EXCHANGE)?;
        let how = match flags as u32 {
            0 => Rename::Replace,
            abi::RENAME_NOREPLACE => Rename::Keep,
            abi::RENAME_EXCHANGE => Rename::Exchange,
            _ => return Err(Errno::EINVAL),
        };
        self.rename_at((from, 1), (to, 3), how)
    }

    fn rename_at(&self, (from, old): (u64, usize), (to, new): (u64, usize), how: Rename) -> Answer {
        let old = self.walk(from, &self.path(old)?, Follow::Never)?;
        let new = self.walk(to, &self.path(new)?, Follow::Never)?;
        if old.name.is_empty() || new.name.is_empty() {
            return Err(if how == Rename::Keep { Errno::EEXIST } else { Errno::EBUSY });
        }
        again_while_stale(|| rename_found(&old, &new, how))?;
        Ok(0)
    }
}

fn rename_found(old: &Found, new: &Found, how: Rename) -> Result<(), Errno> {
    let entry = entry(old)?;
    let is_directory = entry.node().is_directory();
    if (old.slash || new.slash) && !is_directory {
        return Err(Errno::ENOTDIR);
    }
    let moves = !Arc::ptr_eq(&old.directory, &new.directory);
    if moves {
        check_movable(&entry)?;
    }
    match self::entry(new) {
        Ok(there) => {
            if moves && how == Rename::Exchange {
                check_movable(&there)?;
            }
            new.directory_without(&there)?
        }
        // There is none, or no longer.
        Err(Errno::ENOENT) => new.writable_directory()?,
        Err(errno) => return Err(errno),
    };
    old.directory_without(&entry)?.rename((&old.name, &entry), (&new.directory, &new.name), how)
}

/// Fails for a directory that the caller may not write. To move it to another one changes its `..`.
fn check_movable(entry: &Arc<Dentry>) -> Result<(), Errno> {
    if entry.node().is_directory() { check_file(WRITE, || entry.node().attributes()) } else { Ok(()) }
}

/// The entry that was found, which must not be covered by a mount.
fn entry(found: &Found) -> Result<Arc<Dentry>, Errno> {
    let entry = found.directory.node().directory()?.find(&found.directory, &found.name)?;
    if entry.is_mount_point() { Err(Errno::EBUSY) } else { Ok(entry) }
}
