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
///
/// # From where may it be called?
///
/// All methods but those in the table may sleep, wait for other CPUs to flush, or wait for the lock of the
/// address space. Their caller is a task, with interrupts on, that is not pinned and holds no lock of the
/// library. A page-fault handler turns interrupts on before it calls [`Self::fault`]: another CPU may wait for
/// this one to flush its TLB. In debug builds of the library,
/// [`FramePlatform::might_sleep`](crate::platform::FramePlatform::might_sleep) refuses other callers.
///
/// | method | caller |
/// |---|---|
/// | [`switch_in`](Self::switch_in), [`switch_out`](Self::switch_out), [`switch_to`](Self::switch_to) | the scheduler: they neither wait nor take a lock. An interrupt that switches too must not arrive during the call |
/// | [`root`](Self::root), [`number`](Self::number), [`set_huge_group`](Self::set_huge_group) | any |
/// | a drop | as for [`exit`](Self::exit); not checked |
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
    /// to them; locks are not inherited. Faults map pages of shared mappings into the child, and those of files
    /// whose mapping has no private page here, as in Linux; pages that are lost here are lost there too. The child
    /// inherits handlers of faults, and the marks of those that write-protect. A handler that asked for the event
    /// has read it when this returns.
    ///
    /// # Errors
    /// [`MmError::NoMemory`]; this address space sees no change then.
    pub fn fork(&self) -> Result<Self, MmError> {
        Fork::of(self.sleepable()).fork().map(|space| Self { space })
    }

    /// Registers a secondary MMU, which walks this address space by [`Self::translate`] and keeps copies of
    /// what it finds. From here on verbs on the address space call
    /// [`secondary_invalidate_start`](crate::platform::TablePlatform::secondary_invalidate_start) and the
    /// matching end; without a registration they make no such calls. Several may register; the platform's
    /// calls are for all of them. Waits for the verbs under way. The caller holds no lock.
    pub fn register_secondary(&self) -> Secondary<'_, 'm, P> {
        let space = self.sleepable().lock();
        self.space.context().add_secondary();
        drop(space);
        Secondary { mm: self }
    }

    /// Unmaps everything and frees the page table, as a drop does. No other CPU may run the address space.
    pub fn exit(self) {
        self.sleepable();
    }

    /// The address space, for a call that may sleep. Debug builds refuse callers that must not.
    #[inline(always)]
    pub(super) fn sleepable(&self) -> &AddressSpace<'m, P> {
        self.space.memory.sleepable();
        &self.space
    }
}
