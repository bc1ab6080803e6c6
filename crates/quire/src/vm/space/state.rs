//! What the lock of an address space guards: its mappings, and the choices that go with them.
#![forbid(unsafe_code)]

use crate::addr::VirtAddr;
use crate::vm::mapping::vma::VmaFlags;
use crate::vm::tree::VmaTree;
use crate::vm::tree::layout::Layout;

/// How new mappings are locked (`mlockall(MCL_FUTURE)`), or a range is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LockMode {
    /// Not.
    #[default]
    None,
    /// Pages are brought in at once.
    Now,
    /// Pages are locked as they come.
    OnFault,
}

/// The mappings of an address space and what belongs to them.
pub(in crate::vm) struct Space {
    pub(in crate::vm) tree: VmaTree,
    pub(in crate::vm) layout: Layout,
    /// Where the heap starts, and the byte at which it ends.
    pub(in crate::vm) brk: (VirtAddr, VirtAddr),
    pub(in crate::vm) lock_future: LockMode,
    /// Bytes that a mapping which grows down may reach (`RLIMIT_STACK`).
    pub(in crate::vm) stack_limit: u64,
    /// Mappings that verbs may cut it into (`vm.max_map_count`).
    pub(in crate::vm) mapping_limit: usize,
    /// Whether private memory was ever moved to other addresses, here or before a fork.
    pub(in crate::vm) moved: bool,
    /// Whether huge pages were ever mapped, here or before a fork.
    pub(in crate::vm) huge: bool,
    /// Whether anything ever had a handler of faults, here or before a fork.
    pub(in crate::vm) handled: bool,
}

impl LockMode {
    /// The flags that a mapping gets.
    pub(in crate::vm) const fn flags(self) -> VmaFlags {
        match self {
            Self::None => VmaFlags::NONE,
            Self::Now => VmaFlags::LOCKED,
            Self::OnFault => VmaFlags::LOCKED.union(VmaFlags::LOCK_ON_FAULT),
        }
    }
}
