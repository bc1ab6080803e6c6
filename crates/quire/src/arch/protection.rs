//! What accesses a mapping allows, the same on every architecture.

use crate::flags::flag_set;

/// The accesses that a mapping allows. On some architectures the other two imply reading.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Protection(u8);

flag_set!(Protection: READ, WRITE, EXEC);

impl Protection {
    /// Loads.
    pub const READ: Self = Self(1);
    /// Stores.
    pub const WRITE: Self = Self(2);
    /// Instruction fetches.
    pub const EXEC: Self = Self(4);

    /// The three bits as Linux numbers them: 1 read, 2 write, 4 execute.
    #[inline]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Converts from Linux's `PROT_*` bits; other bits are dropped.
    #[inline]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & 7)
    }
}
