//! Extended attributes, which no file has: as a Linux tmpfs that was built without them.

use linux_raw_sys::general as abi;

use super::current;
use crate::errno::Errno;
use crate::syscall::{Answer, Call};

impl Call<'_> {
    /// `getxattr`, `setxattr`, `removexattr`
    pub(in crate::syscall) fn xattr(&self, follow: bool) -> Answer {
        self.place(current(), &self.path(0)?, flags(follow))?;
        Err(Errno::EOPNOTSUPP)
    }

    /// `fgetxattr`, `fsetxattr`, `fremovexattr`
    pub(in crate::syscall) fn fxattr(&self) -> Answer {
        self.file(0)?;
        Err(Errno::EOPNOTSUPP)
    }

    /// `listxattr`: the list is empty.
    pub(in crate::syscall) fn listxattr(&self, follow: bool) -> Answer {
        self.place(current(), &self.path(0)?, flags(follow))?;
        Ok(0)
    }

    pub(in crate::syscall) fn flistxattr(&self) -> Answer {
        self.file(0)?;
        Ok(0)
    }
}

fn flags(follow: bool) -> u64 {
    if follow { 0 } else { abi::AT_SYMLINK_NOFOLLOW.into() }
}
