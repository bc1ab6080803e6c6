//! Page faults that cannot be resolved.

use core::fmt;

/// Why a page fault is none that a memory manager resolves. A kernel that calls
/// [`Mm::fault`](crate::vm::Mm::fault) all the same may fault at the same instruction for ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageFaultError {
    /// An entry has a bit set that the processor reserves: the page table is damaged, or the kernel has not
    /// enabled the bit.
    ReservedBit,
    /// The protection key of the page does not allow the access.
    ProtectionKey,
    /// The access was one of a shadow stack, or an ordinary store to one.
    ShadowStack,
    /// The kernel itself fetched an instruction from the address.
    KernelFetch,
    /// The report has bits that the library does not know, or contradicts itself.
    Unknown,
}

impl fmt::Display for PageFaultError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ReservedBit => {
                "a page-table entry has a reserved bit set: the table is damaged, or a feature is not enabled"
            }
            Self::ProtectionKey => "the protection key of the page does not allow the access",
            Self::ShadowStack => "an access of a shadow stack, or a store to one",
            Self::KernelFetch => "the kernel fetched an instruction from memory that it must not execute",
            Self::Unknown => "a page fault of an unknown kind",
        })
    }
}

impl core::error::Error for PageFaultError {}
