//! What a file system is (`statfs(2)`).

use quire::addr::VirtAddr;
use quire::limits::FRAME_SIZE;

use super::current;
use crate::errno::Errno;
use crate::files::node::FsInfo;
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

    /// `mount` and its like: the tree of file systems is fixed.
    pub(in crate::syscall) fn not_permitted(&self) -> Answer {
        Err(Errno::EPERM)
    }
}
