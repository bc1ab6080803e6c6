//! The position of a search through all address spaces.
#![forbid(unsafe_code)]

use crate::addr::VirtAddr;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Cursor {
    /// Family and number of the address space.
    pub(super) key: (u64, u64),
    /// Where to go on in it.
    pub(super) at: VirtAddr,
}

impl Cursor {
    /// Goes on to the next address space.
    pub(super) fn next_space(&mut self) {
        *self = Self { key: (self.key.0, self.key.1 + 1), at: VirtAddr(0) };
    }
}
