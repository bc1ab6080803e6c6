//! The data that the lock of an address space guards.
#![forbid(unsafe_code)]

use crate::addr::VirtAddr;
use crate::vm::mapping::vma::VmaFlags;
use crate::vm::space::limits::MappedLimits;
use crate::vm::tree::VmaTree;
use crate::vm::tree::layout::Layout;

/// How a range, or every new mapping (`mlockall(MCL_FUTURE)`), is locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LockMode {
    /// Not.
    #[default]
    None,
    /// Pages are brought in at once.
    Now,
    /// Pages are locked when they are touched.
    OnFault,
}

/// The mappings of an address space, and its limits and modes.
pub(in crate::vm) struct Space {
    pub(in crate::vm) tree: VmaTree,
    pub(in crate::vm) layout: Layout,
    /// Where the heap starts, and the byte at which it ends.
    pub(in crate::vm) brk: (VirtAddr, VirtAddr),
    pub(in crate::vm) lock_future: LockMode,
    /// The largest size in bytes of a mapping that grows down (`RLIMIT_STACK`).
    pub(in crate::vm) stack_limit: u64,
    pub(in crate::vm) limits: MappedLimits,
    /// The most mappings that verbs may make by cutting (`vm.max_map_count`).
    pub(in crate::vm) mapping_limit: usize,
    /// Whether private memory was ever moved to other addresses, here or before a fork.
    pub(in crate::vm) moved: bool,
    /// Whether huge pages were ever mapped, here or before a fork.
    pub(in crate::vm) huge: bool,
    /// Whether a mapping ever had a handler of faults, here or before a fork.
    pub(in crate::vm) handled: bool,
}

impl LockMode {
    pub(in crate::vm) const fn flags(self) -> VmaFlags {
        match self {
            Self::None => VmaFlags::NONE,
            Self::Now => VmaFlags::LOCKED,
            Self::OnFault => VmaFlags::LOCKED.union(VmaFlags::LOCK_ON_FAULT),
        }
    }
}
