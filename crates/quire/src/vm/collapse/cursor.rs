//! How far a search through all address spaces came.
#![forbid(unsafe_code)]

use crate::addr::VirtAddr;

/// A place in the order of all address spaces, and in one of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Cursor {
    /// Family and number of the address space.
    pub(super) key: (u64, u64),
    /// Where to go on in it.
    pub(super) at: VirtAddr,
}

impl Cursor {
    /// The address space is done with.
    pub(super) fn leave(&mut self) {
        *self = Self { key: (self.key.0, self.key.1 + 1), at: VirtAddr(0) };
    }
}
