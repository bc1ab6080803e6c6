//! The arms that guard the per-CPU lists in different ways, and allocators of their kind.

use hosted::{Hosted, HostedConfig};
use quire::page_alloc::{AllocatorConfig, ListGuard, PageAllocator};

use super::guarding::OnBare;
use crate::bench::experiment::Skip;

/// The guards, in the order of [`NAMES`].
pub const ALL: [ListGuard; 3] = [ListGuard::Reentry, ListGuard::IrqOff, ListGuard::TaskOnly];

/// The names of their arms.
pub const NAMES: [&str; 3] = ["quire", "irq-off", "task-only"];

/// The name of the arm that guards its lists so.
pub fn name_of(lists: ListGuard) -> &'static str {
    match lists {
        ListGuard::Reentry => NAMES[0],
        ListGuard::IrqOff => NAMES[1],
        ListGuard::TaskOnly => NAMES[2],
    }
}

/// What is to be said of it.
pub fn about(lists: ListGuard) -> &'static str {
    match lists {
        ListGuard::Reentry => {
            "PageAllocator on a bare hosted machine: per-CPU lists for every context behind a re-entry flag, a checked \
             double free, map counts beside, statistics; the common way inlined. Bare: which CPU runs is one load, as in \
             a kernel, and the machine injects no failure and checks no rank, no TLB and no freed frame."
        }
        ListGuard::IrqOff => {
            "the same with interrupts off around every use of a list (Linux before and after 2017), inlined as it is. A process cannot execute cli and sti: what is paid instead is \
             pushf and popf (HostedConfig::interrupt_price) and a flag."
        }
        ListGuard::TaskOnly => {
            "the same with lists for tasks only, interrupts go to the store (the published scheme of 2017), inlined \
             as it is."
        }
    }
}

/// An arm that guards its lists in one way, and the machine of its last case.
pub struct Guarded {
    /// The guard.
    pub lists: ListGuard,
    machine: Option<Hosted>,
}

impl Guarded {
    /// The arm for each guard.
    pub fn all() -> [Self; 3] {
        ALL.map(|lists| Self { lists, machine: None })
    }

    /// Builds a machine and an allocator over all its memory, as [`allocator`].
    ///
    /// # Errors
    /// A machine that the host or the allocator does not take.
    ///
    /// # Safety
    /// As [`allocator`].
    pub unsafe fn build<P: OnBare>(
        &mut self,
        machine: HostedConfig,
    ) -> Result<(&Hosted, PageAllocator<'_, P>), Skip> {
        let zeroed = !machine.prefault;
        let machine = machine.build().map_err(|error| Skip(error.to_string()))?;
        let machine = &*self.machine.insert(machine);
        let config = AllocatorConfig { lists: self.lists, ..AllocatorConfig::default() };
        // SAFETY: H3: by this function's contract.
        let allocator = unsafe { allocator(machine, config, zeroed) }?;
        Ok((machine, allocator))
    }
}

/// An allocator over all memory of a machine, which does not watch what the allocator does: that would be measured too.
/// `zeroed` when nothing has ever been written to the memory.
///
/// # Errors
/// A machine that the allocator does not take.
///
/// # Safety
/// The allocator is used only inside [`Hosted::run_on`] of this machine, with no other machine in between.
pub unsafe fn allocator<P: OnBare>(
    machine: &Hosted,
    config: AllocatorConfig,
    zeroed: bool,
) -> Result<PageAllocator<'_, P>, Skip> {
    // SAFETY: H3: by this function's contract.
    let bare = unsafe { machine.bare() };
    hosted::raw::page_allocator(P::on(bare), &super::ranges(machine, zeroed), config)
        .map_err(|error| Skip(error.to_string()))
}
