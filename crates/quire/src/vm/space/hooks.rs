//! Hooks: procedures that the first call which may need them installs. No other code names such a procedure,
//! so the linker drops it from a kernel that never makes that call.
//!
//! | hook | without it | installed by |
//! |---|---|---|
//! | `lose_marked` | no frame was marked | memory failure |
//! | `reclaim_mapped` | there is no page cache of a pager's file | opening such a file |
//! | `reclaim_underused` | no folio counts as underused | a limit for underused folios |
//! | `drop_lazily_freed` | no page was freed lazily | `MADV_FREE` |
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicBool, Ordering};

use crate::addr::FrameRange;
use crate::platform::{FramePlatform, Platform};
use crate::rank::Rank;
use crate::sync::SpinLock;
use crate::vm::space::address_space::AddressSpace;
use crate::vm::space::shared::MmShared;

/// A procedure that may not be installed yet.
pub(in crate::vm) struct Hook<F> {
    is_installed: AtomicBool,
    procedure: SpinLock<Option<F>>,
}

impl<F: Copy> Hook<F> {
    const fn new() -> Self {
        Self { is_installed: AtomicBool::new(false), procedure: SpinLock::new(Rank::Hook, None) }
    }

    /// Installs the procedure, unless another call has. The caller holds no lock of this or a higher rank.
    #[inline]
    pub(in crate::vm) fn install<P: FramePlatform>(&self, platform: &P, procedure: F) {
        if !self.is_installed.load(Ordering::Acquire) {
            *self.procedure.lock(platform) = Some(procedure);
            self.is_installed.store(true, Ordering::Release);
        }
    }

    /// The procedure, if it is installed. The caller holds no lock of this or a higher rank.
    pub(in crate::vm) fn get<P: FramePlatform>(&self, platform: &P) -> Option<F> {
        *self.procedure.lock(platform)
    }
}

/// The hooks of all address spaces of a machine.
pub(in crate::vm) struct Hooks<P: Platform> {
    /// Takes the marked frames of a folio out of use. The caller holds no lock.
    pub(in crate::vm) lose_marked: Hook<fn(&MmShared<'_, P>, FrameRange)>,
    /// Unmaps and drops clean page cache, and returns the frames freed. The caller holds no lock.
    pub(in crate::vm) reclaim_mapped: Hook<fn(&MmShared<'_, P>) -> u64>,
    /// Splits underused folios, and returns the frames freed. The caller holds no lock.
    pub(in crate::vm) reclaim_underused: Hook<fn(&MmShared<'_, P>) -> u64>,
    /// Drops lazily freed pages of an address space, and returns how many. The caller holds no lock.
    pub(in crate::vm) drop_lazily_freed: Hook<fn(&AddressSpace<'_, P>) -> u64>,
}

impl<P: Platform> Hooks<P> {
    pub(in crate::vm) const fn new() -> Self {
        Self {
            lose_marked: Hook::new(),
            reclaim_mapped: Hook::new(),
            reclaim_underused: Hook::new(),
            drop_lazily_freed: Hook::new(),
        }
    }
}
