//! One small error enum per layer. None holds a string, and none is a catch-all for another layer's errors.

use core::fmt;

use crate::limits::{CLEAR_STRETCH_MOST, FRAME_SIZE};

pub mod errno;
mod init;
mod page_fault;
mod processor;
mod signal;

pub use init::InitError;
pub use page_fault::PageFaultError;
pub use processor::{ProcessorError, Requirement};
pub use signal::Signal;

/// Why the allocator returned no frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocError {
    /// No zone that the request may use has a large enough folio above its watermark.
    OutOfMemory,
    /// The order is too large for this call, or a contiguous range has no blocks or an invalid alignment.
    BadOrder,
    /// A node does not exist on this machine, or no node of the set has memory.
    BadNode,
    /// Some of the frames that the caller named are in use, or are not memory of this machine.
    NotFree,
}

/// Why memory was not added or removed. The memory is as before, but some folios of it may have moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HotplugError {
    /// The range is empty, or does not begin and end at multiples of 2 MiB.
    Unaligned,
    /// Start-up made no record for some of the memory, or it is an edge of a range that fills no whole block.
    NotExpected,
    /// Some of the memory to add is present already.
    Present,
    /// Some of the memory to remove is not present.
    Absent,
    /// The memory to remove lies in several ranges or zones: remove each by itself.
    SeveralRanges,
    /// Some of the memory to remove holds the manager's own tables, went bad, or is an edge of a range.
    HoldsTables,
    /// Some of the memory to remove is in use and cannot be moved, or the task is to be killed.
    InUse,
}

/// Why frames were not freed. Nothing has changed then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FreeError {
    /// The frame is not memory that the manager was given.
    NotMemory,
    /// The frame is free already, or lies on a per-CPU list.
    DoubleFree,
    /// The frame is inside a folio, or starts a folio of another order.
    WrongOrder,
    /// The frame holds metadata, or page tables map it still.
    InUse,
    /// The folio belongs to another allocator. Found in debug builds.
    Foreign,
    /// Freeing a part of the folio needs a split, and there is no memory for its frames' descriptors.
    OutOfMemory,
}

/// Why a folio in use was not split.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SplitError {
    /// No folio in use starts at the frame, or no leaf maps it.
    NotAFolio,
    /// A leaf larger than the parts maps the folio; or a folio below a block's size has an owner besides its
    /// leaves, or contains memory that has just gone bad.
    InUse,
    /// No memory for the descriptors of a block's frames.
    OutOfMemory,
}

/// Why a page table was not changed. As wide as a register, so that a `Result` of a walk stays in whole
/// registers: reassembling it from pieces at each step cost 15 ns of a fault's 66.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum MapError {
    /// No memory for a page-table page or for map counts.
    OutOfMemory,
    /// The address or frame is not aligned to the leaf size.
    Unaligned,
    /// The address is not canonical or lies outside the user half.
    BadAddress,
    /// Something is mapped there already, or a smaller or larger leaf covers the address.
    Occupied,
    /// The table is shared with another address space.
    Shared,
}

/// Why a verb on an address space failed. Each corresponds to one [`errno`](Self::errno) of Linux.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MmError {
    /// `EINVAL`: unaligned, zero-sized or contradictory arguments.
    Invalid,
    /// `ENOMEM`: no memory, or no room in the address space, or the range has a hole where none may be.
    NoMemory,
    /// `EEXIST`: `MAP_FIXED_NOREPLACE` over an existing mapping.
    Exists,
    /// `EFAULT`: nothing is mapped at an address that must be.
    Fault,
    /// `EACCES`: the mapping or the file does not allow that protection.
    Access,
    /// `EPERM`: the range is sealed, or a limit would be exceeded.
    NotPermitted,
    /// `EAGAIN`: no memory for all pages to be locked. The mappings stay marked as locked; lock less.
    Again,
    /// `EBUSY`: pages are pinned or being migrated, or another fault handler is registered.
    Busy,
    /// `EIO`: the pager failed.
    Io,
    /// `EOPNOTSUPP`: the file cannot do that.
    NotSupported,
    /// `EOVERFLOW`: offset plus length passes the largest file offset.
    Overflow,
}

/// Why a fault could not be resolved; a kernel turns it into a [signal](Self::signal).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultError {
    /// `SIGSEGV`, `SEGV_MAPERR`: nothing is mapped there.
    NotMapped,
    /// `SIGSEGV`, `SEGV_ACCERR`: the mapping does not allow the access.
    Protection,
    /// `SIGBUS`, `BUS_ADRERR`: the page lies beyond the end of the file.
    BeyondEnd,
    /// `SIGBUS`, `BUS_ADRERR`: the pager failed.
    Io,
    /// The page is marked for a handler, which must be told of the store first.
    Marked,
    /// `SIGBUS`, `BUS_ADRERR`: the fault handler of the address ([`Userfault`](crate::vm::Userfault)) is gone.
    NoHandler,
    /// `SIGBUS`, `BUS_ADRERR`: every huge page left is reserved for another mapping, or a limit on them is reached.
    NoHugePage,
    /// `SIGBUS`, `BUS_MCEERR_AR`: the memory went bad, and its contents are lost.
    Poisoned,
    /// No memory. The caller decides which task to kill.
    OutOfMemory,
    /// The task is being killed. Its fault was abandoned half done, without visible effect.
    Dying,
}

/// Why a handler could not resolve a fault. Each corresponds to one [`errno`](Self::errno) of Linux.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UserfaultError {
    /// `EINVAL`: an unaligned or empty range, a part of a huge page that is mapped whole, or an operation
    /// that the mapping does not support.
    Invalid,
    /// `ENOENT`: nothing is mapped at the address, or no handler is registered for it.
    NotRegistered,
    /// `EEXIST`: a page is there already, or its file has one.
    Exists,
    /// `EFAULT`: the file has no page to map.
    NotThere,
    /// `EFAULT`: the page lies beyond the end of the file.
    BeyondEnd,
    /// `EAGAIN`: the handler has not read a change to an address space yet. It must read it and decide again.
    Again,
    /// `ENOMEM`.
    OutOfMemory,
    /// `ENOSPC`: every huge page left is reserved for another mapping.
    NoHugePage,
    /// `EIO`: the pager failed.
    Io,
    /// `EHWPOISON`: the memory went bad.
    Poisoned,
    /// The task is being killed.
    Dying,
}

/// There are [`MAX_USERFAULTS`](crate::limits::MAX_USERFAULTS) fault handlers already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooManyHandlers;

impl fmt::Display for TooManyHandlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("there are too many handlers of faults: close one")
    }
}

impl core::error::Error for TooManyHandlers {}

/// Why a folio was not moved to other frames. Its leaves are as before then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MigrateError {
    /// No movable folio is there: the frame is free, or belongs to the manager or to an anonymous folio of more
    /// than 2 MiB; or another task is moving it.
    NotMovable,
    /// A leaf of the folio could not be removed, or a new one appeared meanwhile.
    Busy,
    /// No memory for the new folio, or for its leaves.
    OutOfMemory,
}

/// Why a bad frame was not put out of use. Nothing has changed then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryFailureError {
    /// There is no such frame.
    NotMemory,
    /// The frame was put out of use before, or will be when it is freed.
    AlreadyPoisoned,
    /// The manager itself uses the frame: page tables, small objects, descriptors. Stop the machine.
    Unrecoverable,
    /// The frame is changing owners, its folio is pinned, being cleared or moved, or its file is in use.
    Busy,
    /// No memory to split its folio or a leaf of a huge page, or to unshare page tables. It is still mapped
    /// there: try again.
    OutOfMemory,
}

/// A clear ended early because its caller no longer needs it. The contents of the memory are unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cancelled;

impl fmt::Display for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the clear was cancelled: the memory must be cleared anew before it is used")
    }
}

impl core::error::Error for Cancelled {}

/// Why a kernel or a distance between reschedule points cannot be used to clear or copy memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelError {
    /// The processor lacks a feature, or the system has not enabled it.
    Missing {
        /// The kernel's name.
        kernel: &'static str,
        /// The missing feature's name.
        feature: &'static str,
    },
    /// No kernel has that name.
    Unknown,
    /// The distance between reschedule points is not allowed.
    BadStretch {
        /// The distance.
        bytes: u64,
    },
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { kernel, feature } => {
                write!(
                    f,
                    "this processor cannot run kernel `{kernel}`, which needs `{feature}`: choose another one"
                )
            }
            Self::Unknown => f.write_str("no kernel has that name: `quire calibrate` lists them"),
            Self::BadStretch { bytes } => write!(
                f,
                "reschedule points cannot stand {bytes} bytes apart: choose a multiple of {FRAME_SIZE} up to {CLEAR_STRETCH_MOST}"
            ),
        }
    }
}

impl core::error::Error for KernelError {}

macro_rules! say {
    ($($type:ident { $($variant:ident => $text:literal),* $(,)? })*) => {$(
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $text),* })
            }
        }
        impl core::error::Error for $type {}
    )*};
}

say! {
    AllocError {
        OutOfMemory => "out of memory",
        BadOrder => "order too large for this call",
        BadNode => "no such memory node",
        NotFree => "some of the frames are in use",
    }
    HotplugError {
        Unaligned => "range not aligned to 2 MiB",
        NotExpected => "memory that was not announced at start-up",
        Present => "memory is there already",
        Absent => "memory is not there",
        SeveralRanges => "memory of several ranges: remove each by itself",
        HoldsTables => "memory holds the manager's tables",
        InUse => "memory is in use and cannot be moved",
    }
    FreeError {
        NotMemory => "frame outside the managed memory",
        DoubleFree => "frame is free already",
        WrongOrder => "frame does not start a folio of this order",
        InUse => "frame is mapped or holds metadata",
        Foreign => "folio of another allocator",
        OutOfMemory => "out of memory to split a folio that is freed in part",
    }
    MapError {
        OutOfMemory => "out of memory for page tables",
        Unaligned => "address not aligned to the leaf size",
        BadAddress => "address outside the user half",
        Occupied => "something is mapped there already",
        Shared => "the page table is shared with another address space: unshare it first",
    }
    MigrateError {
        NotMovable => "nothing movable is there",
        Busy => "the folio is in use: try again",
        OutOfMemory => "out of memory to move to",
    }
    MemoryFailureError {
        NotMemory => "frame outside the managed memory",
        AlreadyPoisoned => "the frame is known to be bad",
        Unrecoverable => "the frame holds the manager's own data: stop the machine",
        Busy => "the frame is in use: try again",
        OutOfMemory => "out of memory to put the frame out of use: free some and try again",
    }
    MmError {
        Invalid => "invalid argument",
        NoMemory => "cannot allocate memory",
        Exists => "a mapping exists there already",
        Fault => "bad address",
        Access => "permission denied",
        NotPermitted => "operation not permitted",
        Again => "no memory for all pages that were to be locked: lock less",
        Busy => "pages are pinned, or another handler is registered: unregister it first",
        Io => "the pager failed",
        NotSupported => "the file cannot do that",
        Overflow => "offset too large",
    }
    UserfaultError {
        Invalid => "invalid argument",
        NotRegistered => "no handler is registered for the address: register the range first",
        Exists => "a page is there already: wake the tasks that wait for it",
        NotThere => "the file has no such page: copy it, or map zeroes",
        BeyondEnd => "the page lies behind the end of the file",
        Again => "a change to an address space was not read yet: read it first",
        OutOfMemory => "out of memory",
        NoHugePage => "no huge page is left: enlarge the pool",
        Io => "the pager failed",
        Poisoned => "the memory went bad: unmap the page",
        Dying => "the task is being killed",
    }
    FaultError {
        NotMapped => "nothing is mapped at the address",
        Protection => "the mapping does not allow the access",
        BeyondEnd => "access behind the end of the file",
        Io => "the pager failed",
        Marked => "the page is marked for a handler",
        NoHandler => "the handler of the address is gone: unregister the range, or adopt it by another handler",
        NoHugePage => "no huge page is left: enlarge the pool, or map without MAP_NORESERVE",
        Poisoned => "the memory went bad: unmap the page",
        OutOfMemory => "out of memory",
        Dying => "the task is being killed",
    }
}

impl From<AllocError> for MapError {
    fn from(_: AllocError) -> Self {
        Self::OutOfMemory
    }
}

impl From<AllocError> for MmError {
    fn from(_: AllocError) -> Self {
        Self::NoMemory
    }
}

impl From<FaultError> for UserfaultError {
    fn from(error: FaultError) -> Self {
        match error {
            FaultError::NotMapped | FaultError::Protection | FaultError::NoHandler | FaultError::Marked => {
                Self::NotRegistered
            }
            FaultError::BeyondEnd => Self::BeyondEnd,
            FaultError::Io => Self::Io,
            FaultError::NoHugePage => Self::NoHugePage,
            FaultError::Poisoned => Self::Poisoned,
            FaultError::OutOfMemory => Self::OutOfMemory,
            FaultError::Dying => Self::Dying,
        }
    }
}

impl From<Cancelled> for FaultError {
    fn from(_: Cancelled) -> Self {
        Self::Dying
    }
}

impl From<AllocError> for FaultError {
    fn from(_: AllocError) -> Self {
        Self::OutOfMemory
    }
}
