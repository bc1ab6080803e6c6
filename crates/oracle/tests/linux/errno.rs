//! What the library's errors are on Linux.

use quire::error::{FaultError, MmError};

/// Each error of a verb with its errno, as [`MmError`] documents them.
pub(crate) const ERRNO: [(MmError, i32); 10] = [
    (MmError::Invalid, libc::EINVAL),
    (MmError::NoMemory, libc::ENOMEM),
    (MmError::Exists, libc::EEXIST),
    (MmError::Fault, libc::EFAULT),
    (MmError::Access, libc::EACCES),
    (MmError::NotPermitted, libc::EPERM),
    (MmError::Again, libc::EAGAIN),
    (MmError::Busy, libc::EBUSY),
    (MmError::Io, libc::EIO),
    (MmError::Overflow, libc::EOVERFLOW),
];

/// Each error of an access with the signal and the code that it raises, as [`FaultError`] documents them.
pub(crate) const SIGNALS: [(FaultError, (i32, i32)); 3] = [
    (FaultError::NotMapped, (libc::SIGSEGV, 1)),
    (FaultError::Protection, (libc::SIGSEGV, 2)),
    (FaultError::BeyondEnd, (libc::SIGBUS, 2)),
];

/// The library's name for what a system call failed with, if it has one.
pub(crate) fn verb_error(error: &std::io::Error) -> Option<MmError> {
    ERRNO.iter().find(|(_, errno)| error.raw_os_error() == Some(*errno)).map(|(error, _)| *error)
}

/// The library's name for a signal and its code, if it has one.
pub(crate) fn fault_error(raised: (i32, i32)) -> Option<FaultError> {
    SIGNALS.iter().find(|(_, signal)| *signal == raised).map(|(error, _)| *error)
}
