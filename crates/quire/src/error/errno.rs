//! The number that a system call returns for each error.
//!
//! The numbers are Linux's for x86-64, AArch64 and RISC-V (`asm-generic/errno-base.h`, `asm-generic/errno.h`),
//! positive, as in errno(3). A kernel returns them negated.

use super::{
    AllocError, Cancelled, HotplugError, MemoryFailureError, MigrateError, MmError, TooManyHandlers,
    UserfaultError,
};

/// Operation not permitted.
pub const EPERM: i32 = 1;
/// No such file or entry.
pub const ENOENT: i32 = 2;
/// The call was interrupted.
pub const EINTR: i32 = 4;
/// Input or output failed.
pub const EIO: i32 = 5;
/// No such device or address.
pub const ENXIO: i32 = 6;
/// Try again.
pub const EAGAIN: i32 = 11;
/// Out of memory.
pub const ENOMEM: i32 = 12;
/// Permission denied.
pub const EACCES: i32 = 13;
/// Bad address.
pub const EFAULT: i32 = 14;
/// In use.
pub const EBUSY: i32 = 16;
/// Exists already.
pub const EEXIST: i32 = 17;
/// Invalid argument.
pub const EINVAL: i32 = 22;
/// The system has too many open files.
pub const ENFILE: i32 = 23;
/// The process has too many open files; in mount(2), a table of file systems is full.
pub const EMFILE: i32 = 24;
/// No space left.
pub const ENOSPC: i32 = 28;
/// A result is too large for the caller's buffer.
pub const ERANGE: i32 = 34;
/// A value is too large for its type.
pub const EOVERFLOW: i32 = 75;
/// Not supported here.
pub const EOPNOTSUPP: i32 = 95;
/// The memory went bad.
pub const EHWPOISON: i32 = 133;

impl MmError {
    /// The errno that the variant's description names.
    pub const fn errno(self) -> i32 {
        match self {
            Self::Invalid => EINVAL,
            Self::NoMemory => ENOMEM,
            Self::Exists => EEXIST,
            Self::Fault => EFAULT,
            Self::Access => EACCES,
            Self::NotPermitted => EPERM,
            Self::Again => EAGAIN,
            Self::Busy => EBUSY,
            Self::Io => EIO,
            Self::NotSupported => EOPNOTSUPP,
            Self::Overflow => EOVERFLOW,
        }
    }
}

impl UserfaultError {
    /// The errno that the variant's description names; `EINTR` for a task that is being killed.
    pub const fn errno(self) -> i32 {
        match self {
            Self::Invalid => EINVAL,
            Self::NotRegistered => ENOENT,
            Self::Exists => EEXIST,
            Self::NotThere | Self::BeyondEnd => EFAULT,
            Self::Again => EAGAIN,
            Self::OutOfMemory => ENOMEM,
            Self::NoHugePage => ENOSPC,
            Self::Io => EIO,
            Self::Poisoned => EHWPOISON,
            Self::Dying => EINTR,
        }
    }
}

impl TooManyHandlers {
    /// `ENFILE`, as userfaultfd(2) reports a limit of the whole machine.
    pub const fn errno(self) -> i32 {
        ENFILE
    }
}

impl AllocError {
    /// `ENOMEM`; `EINVAL` for a bad order or node; `EBUSY` for named frames that are in use.
    pub const fn errno(self) -> i32 {
        match self {
            Self::OutOfMemory => ENOMEM,
            Self::BadOrder | Self::BadNode => EINVAL,
            Self::NotFree => EBUSY,
        }
    }
}

impl HotplugError {
    /// `EEXIST` for memory that is present; `EBUSY` for memory that cannot be moved; `EINVAL` for a range that
    /// cannot be added or removed as a whole. The same as writing to Linux's
    /// `/sys/devices/system/memory/memoryN/state` and `/sys/devices/system/memory/probe`.
    pub const fn errno(self) -> i32 {
        match self {
            Self::Unaligned | Self::NotExpected | Self::Absent | Self::SeveralRanges => EINVAL,
            Self::Present => EEXIST,
            Self::HoldsTables | Self::InUse => EBUSY,
        }
    }
}

impl MigrateError {
    /// What move_pages(2) reports for a page: `EBUSY` when it cannot be moved now, `ENOMEM`.
    pub const fn errno(self) -> i32 {
        match self {
            Self::NotMovable | Self::Busy => EBUSY,
            Self::OutOfMemory => ENOMEM,
        }
    }
}

impl MemoryFailureError {
    /// `ENXIO` for an unknown frame; `EHWPOISON` for one that is known to be bad; `EBUSY` for one that cannot
    /// be put out of use; `ENOMEM`. The same as writing to Linux's
    /// `/sys/devices/system/memory/hard_offline_page`.
    pub const fn errno(self) -> i32 {
        match self {
            Self::NotMemory => ENXIO,
            Self::AlreadyPoisoned => EHWPOISON,
            Self::Unrecoverable | Self::Busy => EBUSY,
            Self::OutOfMemory => ENOMEM,
        }
    }
}

impl Cancelled {
    /// `EINTR`: only a task that is being killed cancels a clear, so no program sees the number.
    pub const fn errno(self) -> i32 {
        EINTR
    }
}
