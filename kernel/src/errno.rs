//! The error numbers of Linux (`errno(3)`), and which error of Quire has which.

use quire::error::MmError;

/// Why a system call failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Errno {
    /// `EPERM`
    NotPermitted = 1,
    /// `ENOENT`
    NoEntry = 2,
    /// `EIO`
    Io = 5,
    /// `ENOEXEC`
    NoExec = 8,
    /// `EBADF`
    BadFile = 9,
    /// `EAGAIN`
    Again = 11,
    /// `ENOMEM`
    NoMemory = 12,
    /// `EACCES`
    Access = 13,
    /// `EFAULT`
    Fault = 14,
    /// `EBUSY`
    Busy = 16,
    /// `EEXIST`
    Exists = 17,
    /// `ENODEV`
    NoDevice = 19,
    /// `EINVAL`
    Invalid = 22,
    /// `EMFILE`
    TooManyFiles = 24,
    /// `EROFS`
    ReadOnly = 30,
    /// `ENAMETOOLONG`
    NameTooLong = 36,
    /// `ENOSYS`
    NoSystemCall = 38,
    /// `EOVERFLOW`
    Overflow = 75,
}

impl Errno {
    /// What a program gets in RAX: the negated number.
    pub fn as_result(self) -> u64 {
        i64::from(-(self as i32)) as u64
    }
}

impl From<MmError> for Errno {
    fn from(error: MmError) -> Self {
        match error {
            MmError::Invalid => Self::Invalid,
            MmError::NoMemory => Self::NoMemory,
            MmError::Exists => Self::Exists,
            MmError::Fault => Self::Fault,
            MmError::Access => Self::Access,
            MmError::NotPermitted => Self::NotPermitted,
            MmError::Again => Self::Again,
            MmError::Busy => Self::Busy,
            MmError::Io => Self::Io,
            MmError::Overflow => Self::Overflow,
        }
    }
}
