//! [`Mm`]: how it is made, and its end.
#![forbid(unsafe_code)]

use crate::arch::PagingMode;
use crate::error::MmError;
use crate::platform::Platform;
use crate::tlb::ZapStrategy;
use crate::vm::mm::secondary::Secondary;
use crate::vm::space::address_space::AddressSpace;
use crate::vm::space::shared::MmShared;
use crate::vm::verbs::fork::Fork;

/// An address space.
pub struct Mm<'m, P: Platform> {
    pub(super) space: AddressSpace<'m, P>,
}

impl<'m, P: Platform> Mm<'m, P> {
    /// An empty address space.
    ///
    /// # Errors
    /// [`MmError::NoMemory`].
    pub fn new(memory: &'m MmShared<'m, P>, mode: PagingMode) -> Result<Self, MmError> {
        Self::taken_apart_by(memory, mode, ZapStrategy::default())
    }

    /// As [`Self::new`], with this strategy of unmapping.
    pub(crate) fn taken_apart_by(
        memory: &'m MmShared<'m, P>,
        mode: PagingMode,
        zap: ZapStrategy,
    ) -> Result<Self, MmError> {
        AddressSpace::new(memory, mode, zap).map(|space| Self { space })
    }

    /// Makes a second address space with the same mappings. Private pages are shared until either side stores
    /// to them; locks are not inherited. Faults map pages of shared mappings into the child, as in Linux;
    /// pages that are lost here are lost there too. The child inherits handlers of faults, and the marks of
    /// those that write-protect. A handler that asked for the event has read it when this returns.
    ///
    /// # Errors
    /// [`MmError::NoMemory`]; this address space sees no change then.
    pub fn fork(&self) -> Result<Self, MmError> {
        Fork::of(&self.space).fork().map(|space| Self { space })
    }

    /// Registers a secondary MMU, which walks this address space by [`Self::translate`] and keeps copies of
    /// what it finds. From here on verbs on the address space call
    /// [`secondary_invalidate_start`](crate::platform::TablePlatform::secondary_invalidate_start) and the
    /// matching end; without a registration they make no such calls. Several may register; the platform's
    /// calls are for all of them. Waits for the verbs under way. The caller holds no lock.
    pub fn register_secondary(&self) -> Secondary<'_, 'm, P> {
        let space = self.space.lock();
        self.space.context().add_secondary();
        drop(space);
        Secondary { mm: self }
    }

    /// Unmaps everything and frees the page table, as a drop does. No other CPU may run the address space.
    pub fn exit(self) {}
}
