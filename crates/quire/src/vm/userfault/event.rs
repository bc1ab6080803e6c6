//! The events that a handler of faults reads.
#![forbid(unsafe_code)]

use crate::addr::{VirtAddr, VirtRange};
use crate::arch::Access;
use crate::flags::flag_set;

/// Why a thread waits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum UserfaultKind {
    /// There is no page: `copy`, `zeropage` or `poison` answers it.
    Missing,
    /// The file has the page: `continue` answers it.
    Minor,
    /// The page is write-protected for the handler: taking the protection off answers it.
    WriteProtected,
}

/// The name of a waiting thread: its place among the handler's, and how often the place was used before.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ticket {
    pub(super) slot: u32,
    pub(super) round: u32,
}

impl Ticket {
    /// The thread's place, below [`USERFAULT_SLOTS`](crate::limits::USERFAULT_SLOTS): it alone has it.
    pub const fn place(self) -> u32 {
        self.slot
    }
}

/// A thread that waits for the handler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UserfaultFault {
    /// The number of its address space ([`Mm::number`](crate::vm::Mm::number)).
    pub space: u64,
    /// The page that it accessed, rounded down to 4 KiB, or to a huge page where these are mapped whole.
    pub addr: VirtAddr,
    /// The address itself.
    pub exact: VirtAddr,
    /// Why it waits.
    pub kind: UserfaultKind,
    /// Its access.
    pub access: Access,
    /// Which thread it is.
    pub ticket: Ticket,
    /// Its number, as the kernel has it ([`FramePlatform::thread_number`](crate::platform::FramePlatform::thread_number)).
    pub thread: u64,
}

/// An event. Address spaces are named by their numbers ([`Mm::number`](crate::vm::Mm::number)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UserfaultEvent {
    /// A thread waits for an answer.
    Fault(UserfaultFault),
    /// An address space with registered ranges was forked. The child has the same ones with the same handler.
    Fork {
        /// The parent.
        parent: u64,
        /// The new address space.
        child: u64,
    },
    /// Registered memory was moved, and its registration with it.
    Remap {
        /// The address space.
        space: u64,
        /// Where it was.
        from: VirtAddr,
        /// Where it is.
        to: VirtAddr,
        /// Bytes.
        len: u64,
    },
    /// The pages of a registered range are about to go: they become zeroes, or lie behind their file's end.
    Remove {
        /// The address space.
        space: u64,
        /// The range.
        range: VirtRange,
    },
    /// A registered range was unmapped.
    Unmap {
        /// The address space.
        space: u64,
        /// The range.
        range: VirtRange,
    },
}

/// The changes to address spaces that a handler wants to read, as a set. No verb waits for it after others. With
/// [`FAIL`](Self::FAIL) it is told of no faults.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct UserfaultChanges(u8);

flag_set!(UserfaultChanges: FORK, REMAP, REMOVE, UNMAP, FAIL);

impl UserfaultChanges {
    /// [`UserfaultEvent::Fork`].
    pub const FORK: Self = Self(1);
    /// [`UserfaultEvent::Remap`].
    pub const REMAP: Self = Self(1 << 1);
    /// [`UserfaultEvent::Remove`].
    pub const REMOVE: Self = Self(1 << 2);
    /// [`UserfaultEvent::Unmap`].
    pub const UNMAP: Self = Self(1 << 3);
    /// Faults on its ranges fail at once, by [`FaultError::NoHandler`](crate::error::FaultError::NoHandler), and are not
    /// told (Linux: `UFFD_FEATURE_SIGBUS`).
    pub const FAIL: Self = Self(1 << 4);
    /// All changes.
    pub const ALL: Self = Self(15);
}
