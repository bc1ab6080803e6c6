//! What a file is (`stat(2)`, `statx(2)`).

use linux_raw_sys::general as abi;
use quire::addr::VirtAddr;

use super::{check_flags, current};
use crate::errno::Errno;
use crate::files::node::Attributes;
use crate::syscall::{Answer, Call};

const SECOND: u64 = 1_000_000_000;
const STAT_FLAGS: u32 = abi::AT_SYMLINK_NOFOLLOW | abi::AT_EMPTY_PATH | abi::AT_NO_AUTOMOUNT;

impl Call<'_> {
    pub(in crate::syscall) fn stat(&self) -> Answer {
        let place = self.place(current(), &self.path(0)?, 0)?;
        self.put_stat(self.arguments[1], &place.node().attributes())
    }

    pub(in crate::syscall) fn lstat(&self) -> Answer {
        let place = self.place(current(), &self.path(0)?, abi::AT_SYMLINK_NOFOLLOW.into())?;
        self.put_stat(self.arguments[1], &place.node().attributes())
    }

    pub(in crate::syscall) fn fstat(&self) -> Answer {
        let file = self.table().get(self.arguments[0])?;
        self.put_stat(self.arguments[1], &file.attributes())
    }

    pub(in crate::syscall) fn newfstatat(&self) -> Answer {
        let [directory, _, buffer, flags, ..] = self.arguments;
        check_flags(flags, STAT_FLAGS)?;
        let place = self.place(directory, &self.path_or_empty(1, flags)?, flags)?;
        self.put_stat(buffer, &place.node().attributes())
    }

    /// As [`Call::path`]; no address at all is an empty path where that is allowed.
    fn path_or_empty(&self, index: usize, flags: u64) -> Result<alloc::vec::Vec<u8>, Errno> {
        if self.arguments[index] == 0 && flags as u32 & abi::AT_EMPTY_PATH != 0 {
            return Ok(alloc::vec::Vec::new());
        }
        self.path(index)
    }

    fn put_stat(&self, buffer: u64, file: &Attributes) -> Answer {
        let mode = u64::from(file.kind.mode_bits() | file.mode);
        let pair = |low: u32, high: u64| u64::from(low) | high << 32;
        let words = [
            file.fs,
            file.number,
            u64::from(file.links),
            mode | u64::from(file.uid) << 32,
            pair(file.gid, 0),
            file.kind.device(),
            file.size,
            file.unit,
            file.blocks,
            file.accessed / SECOND,
            file.accessed % SECOND,
            file.modified / SECOND,
            file.modified % SECOND,
            file.changed / SECOND,
            file.changed % SECOND,
            0,
            0,
            0,
        ];
        self.memory.write(VirtAddr(buffer), words.map(u64::to_le_bytes).as_flattened())?;
        Ok(0)
    }

    pub(in crate::syscall) fn statx(&self) -> Answer {
        let [directory, _, flags, mask, buffer, _] = self.arguments;
        check_flags(flags, STAT_FLAGS | abi::AT_STATX_SYNC_TYPE)?;
        if mask as u32 & abi::STATX__RESERVED != 0
            || flags as u32 & abi::AT_STATX_SYNC_TYPE == abi::AT_STATX_SYNC_TYPE
        {
            return Err(Errno::EINVAL);
        }
        let place = self.place(directory, &self.path_or_empty(1, flags)?, flags)?;
        let file = place.node().attributes();
        self.memory.write(VirtAddr(buffer), &statx_image(&file))?;
        Ok(0)
    }
}

/// The bytes of `struct statx`.
fn statx_image(file: &Attributes) -> [u8; size_of::<abi::statx>()] {
    let mut image = [0; size_of::<abi::statx>()];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    let time = |ns: u64| [ns / SECOND, ns % SECOND].map(u64::to_le_bytes);
    let (major, minor) = parts(file.kind.device());
    put(0, &(abi::STATX_BASIC_STATS | abi::STATX_BTIME).to_le_bytes());
    put(4, &(file.unit as u32).to_le_bytes());
    put(16, &file.links.to_le_bytes());
    put(20, &file.uid.to_le_bytes());
    put(24, &file.gid.to_le_bytes());
    put(28, &((file.kind.mode_bits() | file.mode) as u16).to_le_bytes());
    put(32, &file.number.to_le_bytes());
    put(40, &file.size.to_le_bytes());
    put(48, &file.blocks.to_le_bytes());
    put(64, time(file.accessed).as_flattened());
    put(80, time(file.created).as_flattened());
    put(96, time(file.changed).as_flattened());
    put(112, time(file.modified).as_flattened());
    put(128, &major.to_le_bytes());
    put(132, &minor.to_le_bytes());
    let (major, minor) = parts(file.fs);
    put(136, &major.to_le_bytes());
    put(140, &minor.to_le_bytes());
    image
}

/// The parts of a device's number.
fn parts(device: u64) -> (u32, u32) {
    let major = device >> 8 & 0xfff | device >> 32 & !0xfff;
    let minor = device & 0xff | device >> 12 & !0xff;
    (major as u32, minor as u32)
}
