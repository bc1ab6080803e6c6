//! x86-64: paging (Intel SDM volume 3A chapter 4, AMD64 APM volume 2 chapter 5), and instructions that clear, copy and fetch.

mod clear;
mod copy;
mod entry;
mod features;
mod level;
mod prefetch;

pub use clear::{ClearKernel, ReadyClear, store_fence};
pub use copy::{CopyKernel, ReadyCopy};
pub use entry::{Entry, EntryFlags};
pub use features::{Caches, CpuFeatures, Feature};
pub use level::{Level, PagingMode};
pub use prefetch::{expect_changes, expect_reads};

use crate::flags::flag_set;

/// What an access through a mapping may do. Reading is implied by the other two on x86-64.
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

    /// From Linux's `PROT_*` bits; other bits are dropped.
    #[inline]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & 7)
    }
}

#[cfg(test)]
mod tests;
