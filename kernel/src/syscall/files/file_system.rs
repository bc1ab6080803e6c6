//! What a file system is (`statfs(2)`).

use alloc::string::String;
use alloc::sync::Arc;

use linux_raw_sys::general as abi;
use quire::addr::VirtAddr;
use quire::limits::FRAME_SIZE;

use super::current;
use crate::errno::Errno;
use crate::files::dentry::Dentry;
use crate::files::mounts;
use crate::files::walk::NAME_BYTES;
use crate::syscall::{Answer, Call};
use crate::task::credentials::{self, Right};

/// The flags that say which namespaces see a mount.
const PROPAGATION: u32 = abi::MS_SHARED | abi::MS_PRIVATE | abi::MS_SLAVE | abi::MS_UNBINDABLE;

/// `ST_VALID`, `ST_RELATIME`
const FLAGS: u64 = 0x20 | 0x1000;

impl Call<'_> {
    pub(in crate::syscall) fn statfs(&self) -> Answer {
        let place = self.place(current(), &self.path(0)?, 0)?;
        self.put_statfs(&place)
    }

    pub(in crate::syscall) fn fstatfs(&self) -> Answer {
        let file = self.table().get(self.arguments[0])?;
        self.put_statfs(file.place())
    }

    fn put_statfs(&self, place: &Arc<Dentry>) -> Answer {
        let info = place.node().fs_info();
        let words = [
            info.magic,
            info.page,
            info.blocks,
            info.free,
            info.free,
            info.nodes,
            info.free_nodes,
            info.fs,
            NAME_BYTES as u64,
            info.page,
            FLAGS | u64::from(mounts::of(place).map_or(0, |mounted| mounted.flags())),
            0,
            0,
            0,
            0,
        ];
        self.memory.write(VirtAddr(self.arguments[1]), words.map(u64::to_le_bytes).as_flattened())?;
        Ok(0)
    }

    /// `mount`: a new file system in memory, or one more view of `/proc` and `/sys`.
    pub(in crate::syscall) fn mount(&self) -> Answer {
        let flags = self.arguments[3] as u32;
        if flags & PROPAGATION != 0 {
            // There is one namespace of mounts, so nothing is passed on.
            return Ok(0);
        }
        credentials::check(Right::Administrate)?;
        if flags & (abi::MS_BIND | abi::MS_MOVE | abi::MS_REMOUNT) != 0 {
            return Err(Errno::EPERM);
        }
        let text = |index: usize| match self.arguments[index] {
            0 => Ok(String::new()),
            _ => {
                let text = self.memory.read_string(self.addr(index), FRAME_SIZE as usize, Errno::EINVAL)?;
                String::from_utf8(text).map_err(|_| Errno::EINVAL)
            }
        };
        let (source, kind, options) = (text(0)?, text(2)?, text(4)?);
        let place = self.place(current(), &self.path(1)?, 0)?;
        let disk = if kind == "ext2" { Some(self.place(current(), &self.path(0)?, 0)?) } else { None };
        mounts::mount((&source, disk), &place, &kind, &options, flags)?;
        Ok(0)
    }

    /// `umount2`
    pub(in crate::syscall) fn umount(&self) -> Answer {
        let flags = self.arguments[1] as u32;
        credentials::check(Right::Administrate)?;
        super::check_flags(flags.into(), abi::MNT_FORCE | abi::MNT_DETACH | abi::UMOUNT_NOFOLLOW)?;
        mounts::unmount(&self.place(current(), &self.path(0)?, 0)?, flags & abi::MNT_DETACH != 0)?;
        Ok(0)
    }

    /// What changes the tree of file systems otherwise.
    pub(in crate::syscall) fn not_permitted(&self) -> Answer {
        Err(Errno::EPERM)
    }
}
