//! Faults of the software MMU.

use quire::addr::VirtAddr;

/// The cause of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultCause {
    /// No entry translates the address, or no page table is loaded.
    NotPresent,
    /// A translation exists and does not allow the access (bit 0 of a page fault's error code).
    Protection,
    /// An entry has a bit set that must be zero (bit 3 of the error code), or names no memory. The machine has also
    /// recorded a [`crate::Violation`].
    Reserved,
    /// The address is not canonical: a general protection fault on hardware.
    NonCanonical,
}

/// An access that the software MMU refused, as a page-fault handler sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageFault {
    /// The first byte that could not be accessed.
    pub addr: VirtAddr,
    /// The access was a store.
    pub write: bool,
    /// The access was an instruction fetch.
    pub exec: bool,
    /// What stopped it.
    pub cause: FaultCause,
}

impl PageFault {
    /// Whether a translation was present and refused the access; as bit 0 of a page fault's error code.
    pub fn protection(&self) -> bool {
        self.cause == FaultCause::Protection
    }
}

/// The kinds of access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    Read,
    Write,
    Fetch,
    /// A load in kernel mode.
    KernelRead,
    /// A store in kernel mode: as with `CR0.WP`, only where all levels allow it.
    KernelWrite,
}

impl Access {
    pub(super) fn fault(self, addr: u64, cause: FaultCause) -> PageFault {
        PageFault { addr: VirtAddr(addr), write: self.writes(), exec: self == Self::Fetch, cause }
    }

    pub(super) fn writes(self) -> bool {
        matches!(self, Self::Write | Self::KernelWrite)
    }
}
