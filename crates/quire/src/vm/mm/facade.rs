//! The address space as callers hold it: what it is made from, and its end.
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

    /// As [`Self::new`], taken apart in this way.
    pub(crate) fn taken_apart_by(
        memory: &'m MmShared<'m, P>,
        mode: PagingMode,
        zap: ZapStrategy,
    ) -> Result<Self, MmError> {
        AddressSpace::new(memory, mode, zap).map(|space| Self { space })
    }

    /// A second address space with the same mappings. Private pages are shared until either side stores to
    /// them; locks are not inherited. Pages of shared mappings come to the child by faults, as with Linux;
    /// what is lost of them is lost to it as well. Handlers of faults are inherited, and the marks of those
    /// that write-protect; one that wants to read of it has done so when this returns.
    ///
    /// # Errors
    /// [`MmError::NoMemory`]; nothing has changed that this address space could see.
    pub fn fork(&self) -> Result<Self, MmError> {
        Fork::of(&self.space).fork().map(|space| Self { space })
    }

    /// Registers a secondary MMU, one that walks this address space by [`Self::translate`] and keeps copies
    /// of what it finds. From here on verbs on the address space call
    /// [`secondary_invalidate_start`](crate::platform::TablePlatform::secondary_invalidate_start) and what
    /// belongs to it; for an address space without any they make no such call. Several may register; each is
    /// told everything, since the platform is. Waits for the verbs under way. The caller holds no lock.
    pub fn register_secondary(&self) -> Secondary<'_, 'm, P> {
        let space = self.space.lock();
        self.space.context().add_secondary();
        drop(space);
        Secondary { mm: self }
    }

    /// Unmaps everything and frees the page table. Dropping the value does the same. No CPU but this one may
    /// run the address space.
    pub fn exit(self) {}
}
