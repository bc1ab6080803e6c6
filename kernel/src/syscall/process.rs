//! What a program asks about itself.

use x86_64::registers::model_specific::FsBase;

use super::{Answer, Call};
use crate::errno::Errno;
use crate::program::stack;

/// The only process.
pub(super) const PID: u64 = 1;
/// All programs are the root user's.
pub(super) const ROOT_USER: u64 = 0;

const ARCH_SET_FS: u64 = 0x1002;
const PR_GET_NAME: u64 = 16;
const RLIMIT_STACK: u64 = 3;
const UNLIMITED: u64 = u64::MAX;

/// The size of a string of `struct utsname`.
const NAME_BYTES: usize = 65;

/// What `PR_GET_NAME` answers, in its 16 bytes.
const NAME: &[u8; 16] = b"program\0\0\0\0\0\0\0\0\0";

impl Call<'_> {
    /// `arch_prctl(ARCH_SET_FS)`: the base of thread-local storage.
    pub(super) fn arch_prctl(&self) -> Answer {
        let [code, base, ..] = self.arguments;
        if code != ARCH_SET_FS {
            return Err(Errno::EINVAL);
        }
        if base >= self.space.layout().user.end.0 {
            return Err(Errno::EPERM);
        }
        FsBase::write(x86_64::VirtAddr::new(base));
        Ok(0)
    }

    pub(super) fn prctl(&self) -> Answer {
        if self.arguments[0] != PR_GET_NAME {
            return Err(Errno::EINVAL);
        }
        self.memory.write(self.addr(1), NAME)?;
        Ok(0)
    }

    /// `prlimit64`, reading only: the soft and the hard limit.
    pub(super) fn prlimit(&self) -> Answer {
        let [_, resource, new, old, ..] = self.arguments;
        if new != 0 {
            return Err(Errno::EPERM);
        }
        if old != 0 {
            let soft = if resource == RLIMIT_STACK { stack::LIMIT_BYTES } else { UNLIMITED };
            self.memory.write(self.addr(3), [soft, UNLIMITED].map(u64::to_le_bytes).as_flattened())?;
        }
        Ok(0)
    }

    /// `uname`: six strings of 65 bytes, the last of which, the domain, is empty.
    pub(super) fn uname(&self) -> Answer {
        let mut names = [[0; NAME_BYTES]; 6];
        for (field, name) in names.iter_mut().zip(["Linux", "quire", "6.1.0", "quire-kernel", "x86_64"]) {
            field[..name.len()].copy_from_slice(name.as_bytes());
        }
        self.memory.write(self.addr(0), names.as_flattened())?;
        Ok(0)
    }

    /// `readlink`: there are no links. Static programs ask for `/proc/self/exe` and do without.
    pub(super) fn readlink(&self) -> Answer {
        Err(Errno::ENOENT)
    }

    /// `getrandom`, without randomness: the bytes are a fixed sequence, so that runs repeat. No secret may depend on
    /// them.
    pub(super) fn getrandom(&self) -> Answer {
        let [_, bytes, ..] = self.arguments;
        let bytes = bytes.min(256);
        let sequence: [u8; 256] =
            core::array::from_fn(|index| (index as u8).wrapping_mul(167).wrapping_add(13));
        self.memory.write(self.addr(0), &sequence[..bytes as usize])?;
        Ok(bytes)
    }
}
