//! `mlock` and its kin. All programs are the root user's, who may lock as much as there is: `RLIMIT_MEMLOCK` limits
//! none of them, as in Linux.

use linux_raw_sys::general as abi;

use crate::errno::Errno;
use crate::syscall::{Answer, Call};

impl Call<'_> {
    /// `mlock`
    pub(in crate::syscall) fn mlock(&self) -> Answer {
        self.space.mlock(self.addr(0), self.arguments[1], false)?;
        Ok(0)
    }

    /// `mlock2`
    pub(in crate::syscall) fn mlock2(&self) -> Answer {
        let flags = self.arguments[2] as u32;
        if flags & !abi::MLOCK_ONFAULT != 0 {
            return Err(Errno::EINVAL);
        }
        self.space.mlock(self.addr(0), self.arguments[1], flags & abi::MLOCK_ONFAULT != 0)?;
        Ok(0)
    }

    /// `munlock`
    pub(in crate::syscall) fn munlock(&self) -> Answer {
        self.space.munlock(self.addr(0), self.arguments[1])?;
        Ok(0)
    }

    /// `mlockall`
    pub(in crate::syscall) fn mlockall(&self) -> Answer {
        let flags = self.arguments[0] as u32;
        let known = abi::MCL_CURRENT | abi::MCL_FUTURE | abi::MCL_ONFAULT;
        if flags == 0 || flags & !known != 0 || flags == abi::MCL_ONFAULT {
            return Err(Errno::EINVAL);
        }
        let has = |flag| flags & flag != 0;
        self.space.mlockall(has(abi::MCL_CURRENT), has(abi::MCL_FUTURE), has(abi::MCL_ONFAULT))?;
        Ok(0)
    }

    /// `munlockall`
    pub(in crate::syscall) fn munlockall(&self) -> Answer {
        self.space.munlockall()?;
        Ok(0)
    }
}
