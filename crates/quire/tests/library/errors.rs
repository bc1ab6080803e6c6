//! Numbers of errors and signals, against those of the host's C library.

use quire::error::{
    AllocError, Cancelled, FaultError, HotplugError, MemoryFailureError, MigrateError, MmError,
    PageFaultError, Signal, TooManyHandlers, UserfaultError,
};
use quire::hugetlb::{ControlError, HugeFsError, HugeGroupError};

/// `SEGV_MAPERR`, `SEGV_ACCERR` and `SEGV_PKUERR` of sigaction(2), which the crate `libc` has not for Linux.
const SEGV: [i32; 3] = [1, 2, 4];

#[test]
fn every_error_of_a_verb_is_the_errno_of_its_description() {
    assert_eq!(MmError::Invalid.errno(), libc::EINVAL);
    assert_eq!(MmError::NoMemory.errno(), libc::ENOMEM);
    assert_eq!(MmError::Exists.errno(), libc::EEXIST);
    assert_eq!(MmError::Fault.errno(), libc::EFAULT);
    assert_eq!(MmError::Access.errno(), libc::EACCES);
    assert_eq!(MmError::NotPermitted.errno(), libc::EPERM);
    assert_eq!(MmError::Again.errno(), libc::EAGAIN);
    assert_eq!(MmError::Busy.errno(), libc::EBUSY);
    assert_eq!(MmError::Io.errno(), libc::EIO);
    assert_eq!(MmError::Overflow.errno(), libc::EOVERFLOW);
}

#[test]
fn every_error_of_a_handler_is_the_errno_of_its_description() {
    assert_eq!(UserfaultError::Invalid.errno(), libc::EINVAL);
    assert_eq!(UserfaultError::NotRegistered.errno(), libc::ENOENT);
    assert_eq!(UserfaultError::Exists.errno(), libc::EEXIST);
    assert_eq!(UserfaultError::NotThere.errno(), libc::EFAULT);
    assert_eq!(UserfaultError::BeyondEnd.errno(), libc::EFAULT);
    assert_eq!(UserfaultError::Again.errno(), libc::EAGAIN);
    assert_eq!(UserfaultError::OutOfMemory.errno(), libc::ENOMEM);
    assert_eq!(UserfaultError::NoHugePage.errno(), libc::ENOSPC);
    assert_eq!(UserfaultError::Io.errno(), libc::EIO);
    assert_eq!(UserfaultError::Poisoned.errno(), libc::EHWPOISON);
    assert_eq!(UserfaultError::Dying.errno(), libc::EINTR);
    assert_eq!(TooManyHandlers.errno(), libc::ENFILE);
    assert_eq!(Cancelled.errno(), libc::EINTR);
}

#[test]
fn every_error_about_frames_has_an_errno() {
    assert_eq!(AllocError::OutOfMemory.errno(), libc::ENOMEM);
    assert_eq!(AllocError::BadOrder.errno(), libc::EINVAL);
    assert_eq!(AllocError::BadNode.errno(), libc::EINVAL);
    assert_eq!(AllocError::NotFree.errno(), libc::EBUSY);
    for refused in [
        HotplugError::Unaligned,
        HotplugError::NotExpected,
        HotplugError::Absent,
        HotplugError::SeveralRanges,
    ] {
        assert_eq!(refused.errno(), libc::EINVAL, "{refused:?}");
    }
    assert_eq!(HotplugError::Present.errno(), libc::EEXIST);
    assert_eq!(HotplugError::HoldsTables.errno(), libc::EBUSY);
    assert_eq!(HotplugError::InUse.errno(), libc::EBUSY);
    assert_eq!(MigrateError::NotMovable.errno(), libc::EBUSY);
    assert_eq!(MigrateError::Busy.errno(), libc::EBUSY);
    assert_eq!(MigrateError::OutOfMemory.errno(), libc::ENOMEM);
    assert_eq!(MemoryFailureError::NotMemory.errno(), libc::ENXIO);
    assert_eq!(MemoryFailureError::AlreadyPoisoned.errno(), libc::EHWPOISON);
    assert_eq!(MemoryFailureError::Unrecoverable.errno(), libc::EBUSY);
    assert_eq!(MemoryFailureError::Busy.errno(), libc::EBUSY);
    assert_eq!(MemoryFailureError::OutOfMemory.errno(), libc::ENOMEM);
}

#[test]
fn every_error_about_pools_of_huge_pages_has_an_errno() {
    assert_eq!(HugeFsError::NoPages.errno(), libc::ENOMEM);
    assert_eq!(HugeFsError::TooMany.errno(), libc::EMFILE);
    assert_eq!(HugeFsError::BadLimits.errno(), libc::EINVAL);
    assert_eq!(ControlError::NoSuchFile.errno(), libc::ENOENT);
    assert_eq!(ControlError::NotPermitted.errno(), libc::EACCES);
    assert_eq!(ControlError::NotANumber.errno(), libc::EINVAL);
    assert_eq!(ControlError::TooLarge.errno(), libc::ERANGE);
    assert_eq!(ControlError::NoRoom.errno(), libc::ERANGE);
    assert_eq!(HugeGroupError::TooMany.errno(), libc::EAGAIN);
    assert_eq!(HugeGroupError::NoMemory.errno(), libc::ENOMEM);
}

#[test]
fn a_fault_becomes_the_signal_of_its_description_or_none() {
    let signal = |number, code| Some(Signal { number, code });
    assert_eq!(FaultError::NotMapped.signal(), signal(libc::SIGSEGV, SEGV[0]));
    assert_eq!(FaultError::Protection.signal(), signal(libc::SIGSEGV, SEGV[1]));
    let bus = signal(libc::SIGBUS, libc::BUS_ADRERR);
    for error in [FaultError::BeyondEnd, FaultError::Io, FaultError::NoHandler, FaultError::NoHugePage] {
        assert_eq!(error.signal(), bus, "{error:?}");
    }
    assert_eq!(FaultError::Poisoned.signal(), signal(libc::SIGBUS, libc::BUS_MCEERR_AR));
    for error in [FaultError::Marked, FaultError::OutOfMemory, FaultError::Dying] {
        assert_eq!(error.signal(), None, "{error:?}");
    }
}

#[test]
fn a_page_fault_that_cannot_be_resolved_becomes_a_signal_if_the_program_is_at_fault() {
    let signal = |code| Some(Signal { number: libc::SIGSEGV, code });
    assert_eq!(PageFaultError::ProtectionKey.signal(), signal(SEGV[2]));
    assert_eq!(PageFaultError::ShadowStack.signal(), signal(SEGV[1]));
    for error in [PageFaultError::ReservedBit, PageFaultError::KernelFetch, PageFaultError::Unknown] {
        assert_eq!(error.signal(), None, "{error:?}");
    }
}
