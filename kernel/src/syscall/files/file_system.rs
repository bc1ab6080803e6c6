//! What a file system is (`statfs(2)`).

use linux_raw_sys::general as abi;
use quire::addr::VirtAddr;
use quire::limits::FRAME_SIZE;

use super::current;
use crate::errno::Errno;
use crate::files::mounted;
use crate::files::node::FsInfo;
use crate::files::stored::MOUNT_FLAGS;
use crate::files::walk::NAME_BYTES;
use crate::syscall::{Answer, Call};

/// `ST_VALID`, `ST_RELATIME`
const FLAGS: u64 = 0x20 | 0x1000;

impl Call<'_> {
    pub(in crate::syscall) fn statfs(&self) -> Answer {
        let place = self.place(current(), &self.path(0)?, 0)?;
        self.put_statfs(&place.node().fs_info())
    }

    pub(in crate::syscall) fn fstatfs(&self) -> Answer {
        let file = self.table().get(self.arguments[0])?;
        self.put_statfs(&file.place().node().fs_info())
    }

    fn put_statfs(&self, info: &FsInfo) -> Answer {
        let words = [
            info.magic,
            FRAME_SIZE,
            info.blocks,
            info.free,
            info.free,
            info.nodes,
            info.nodes,
            info.fs,
            NAME_BYTES as u64,
            FRAME_SIZE,
            FLAGS,
            0,
            0,
            0,
            0,
        ];
        self.memory.write(VirtAddr(self.arguments[1]), words.map(u64::to_le_bytes).as_flattened())?;
        Ok(0)
    }

    /// `mount`: of a file system on a disk.
    pub(in crate::syscall) fn mount(&self) -> Answer {
        let flags = self.arguments[3] as u32;
        if flags & !MOUNT_FLAGS != 0 {
            return Err(Errno::EPERM);
        }
        let kind = self.memory.read_string(self.addr(2), FRAME_SIZE as usize, Errno::EINVAL)?;
        let target = self.place(current(), &self.path(1)?, 0)?;
        if !mounted::is_known(&kind) {
            return Err(Errno::ENODEV);
        }
        let source = self.place(current(), &self.path(0)?, 0)?;
        mounted::mount(&source, &target, flags & abi::MS_RDONLY != 0)?;
        Ok(0)
    }

    /// `umount2`
    pub(in crate::syscall) fn umount(&self) -> Answer {
        if self.arguments[1] as u32 & !abi::UMOUNT_NOFOLLOW != 0 {
            return Err(Errno::EINVAL);
        }
        mounted::unmount(&self.place(current(), &self.path(0)?, 0)?)?;
        Ok(0)
    }

    /// What changes the tree of file systems otherwise.
    pub(in crate::syscall) fn not_permitted(&self) -> Answer {
        Err(Errno::EPERM)
    }
}
