//! Limits of an address space: how much may be mapped.
#![forbid(unsafe_code)]

use crate::addr::VirtRange;
use crate::arch::Protection;
use crate::error::MmError;
use crate::vm::mapping::vma::{VmaAttributes, VmaFlags};
use crate::vm::space::state::Space;

/// How many bytes an address space may map. Without a limit a verb counts nothing; with one it visits every mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MappedLimits {
    /// All mappings together (`RLIMIT_AS`).
    pub all: u64,
    /// Private writable mappings that are no stacks, and the heap with the program's own data (`RLIMIT_DATA`).
    pub data: u64,
}

impl MappedLimits {
    /// No limit.
    pub const NONE: Self = Self { all: u64::MAX, data: u64::MAX };
}

impl Default for MappedLimits {
    fn default() -> Self {
        Self::NONE
    }
}

/// Whether a mapping counts as data.
pub(in crate::vm) fn is_data(vma: &VmaAttributes) -> bool {
    vma.is_private()
        && vma.protection.contains(Protection::WRITE)
        && !vma.flags.contains(VmaFlags::GROWS_DOWN)
}

impl Space {
    /// Checks that `bytes` more may be mapped, in place of what is mapped in `replaced`. `data`: they count as data.
    ///
    /// # Errors
    /// [`MmError::NoMemory`].
    pub(in crate::vm) fn check_limits(
        &self,
        bytes: u64,
        data: bool,
        replaced: VirtRange,
    ) -> Result<(), MmError> {
        if self.limits == MappedLimits::NONE {
            return Ok(());
        }
        let there = self.tree.overlapping(replaced).map(|vma| vma.range.intersect(replaced).len());
        let more = bytes - there.sum::<u64>();
        let all: u64 = self.tree.iter().map(|vma| vma.range.len()).sum();
        if all + more > self.limits.all {
            return Err(MmError::NoMemory);
        }
        if data { self.check_data(more) } else { Ok(()) }
    }

    /// Checks that `bytes` more may count as data.
    ///
    /// # Errors
    /// [`MmError::NoMemory`].
    pub(in crate::vm) fn check_data(&self, bytes: u64) -> Result<(), MmError> {
        if self.limits.data == u64::MAX {
            return Ok(());
        }
        let now = self.tree.iter().filter(|vma| is_data(&vma.attributes)).map(|vma| vma.range.len());
        if now.sum::<u64>() + bytes > self.limits.data { Err(MmError::NoMemory) } else { Ok(()) }
    }
}
