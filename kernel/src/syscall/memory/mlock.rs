//! `mlock` and its kin. `RLIMIT_MEMLOCK` limits those without the right to lock as much as there is.

use linux_raw_sys::general as abi;

use quire::addr::{VirtAddr, VirtRange};
use quire::limits::FRAME_SIZE;
use quire::vm::vma::VmaFlags;

use crate::errno::Errno;
use crate::syscall::{Answer, Call};
use crate::task::credentials::Right;

impl Call<'_> {
    /// `mlock`
    pub(in crate::syscall) fn mlock(&self) -> Answer {
        self.lock(false)
    }

    fn lock(&self, on_fault: bool) -> Answer {
        let [start, bytes, ..] = self.arguments;
        let limit = self.lock_limit()?;
        let first = start & !(FRAME_SIZE - 1);
        let end = start.wrapping_add(bytes).checked_next_multiple_of(FRAME_SIZE).filter(|end| *end >= first);
        if let (Some(limit), Some(end)) = (limit, end) {
            let (all, inside) = self.locked_bytes(VirtRange::new(VirtAddr(first), VirtAddr(end)));
            if all - inside + (end - first) > limit {
                return Err(Errno::ENOMEM);
            }
        }
        self.space.mlock(self.addr(0), bytes, on_fault)?;
        Ok(0)
    }

    /// `mlock2`
    pub(in crate::syscall) fn mlock2(&self) -> Answer {
        let flags = self.arguments[2] as u32;
        if flags & !abi::MLOCK_ONFAULT != 0 {
            return Err(Errno::EINVAL);
        }
        self.lock(flags & abi::MLOCK_ONFAULT != 0)
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
        let limit = self.lock_limit()?;
        let mapped = || {
            let mut bytes = 0;
            self.space.vmas(|vma| bytes += vma.range.len());
            bytes
        };
        if has(abi::MCL_CURRENT) && limit.is_some_and(|limit| mapped() > limit) {
            return Err(Errno::ENOMEM);
        }
        self.space.mlockall(has(abi::MCL_CURRENT), has(abi::MCL_FUTURE), has(abi::MCL_ONFAULT))?;
        Ok(0)
    }

    /// `munlockall`
    pub(in crate::syscall) fn munlockall(&self) -> Answer {
        self.space.munlockall()?;
        Ok(0)
    }

    /// How much the caller may lock, in bytes; `None`: as much as there is.
    ///
    /// # Errors
    /// [`Errno::EPERM`]: nothing.
    pub(in crate::syscall) fn lock_limit(&self) -> Result<Option<u64>, Errno> {
        if self.process().has(Right::LockMemory) {
            return Ok(None);
        }
        match self.process().limits.get(abi::RLIMIT_MEMLOCK)?.soft {
            0 => Err(Errno::EPERM),
            soft => Ok(Some(soft)),
        }
    }

    /// Whether the caller may have this much more locked memory, by a call that is not there to lock any.
    ///
    /// # Errors
    /// [`Errno::EAGAIN`].
    pub(in crate::syscall) fn check_more_locked(&self, bytes: u64) -> Result<(), Errno> {
        let limit = match self.lock_limit() {
            Ok(None) => return Ok(()),
            Ok(Some(limit)) => limit,
            Err(_) => 0,
        };
        let (locked, _) = self.locked_bytes(VirtRange::new(VirtAddr(0), VirtAddr(0)));
        if locked.saturating_add(bytes) > limit { Err(Errno::EAGAIN) } else { Ok(()) }
    }

    /// How much of the program's memory is locked, and how much of a range.
    pub(in crate::syscall) fn locked_bytes(&self, range: VirtRange) -> (u64, u64) {
        let (mut all, mut inside) = (0, 0);
        self.space.vmas(|vma| {
            if vma.flags.contains(VmaFlags::LOCKED) {
                all += vma.range.len();
                inside += vma.range.end.min(range.end).0.saturating_sub(vma.range.start.max(range.start).0);
            }
        });
        (all, inside)
    }
}
