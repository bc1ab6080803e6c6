//! Arms with different guards of the per-CPU lists, and their allocators.

use hosted::{Hosted, HostedConfig};
use quire::page_alloc::{AllocatorConfig, ListGuard, PageAllocator};

use super::guarding::OnBare;
use crate::bench::experiment::Skip;

/// The guards, in the order of [`NAMES`].
pub const ALL: [ListGuard; 3] = [ListGuard::Reentry, ListGuard::IrqOff, ListGuard::TaskOnly];

/// The names of their arms.
pub const NAMES: [&str; 3] = ["quire", "irq-off", "task-only"];

/// The name of the arm with this guard.
pub fn name_of(lists: ListGuard) -> &'static str {
    match lists {
        ListGuard::Reentry => NAMES[0],
        ListGuard::IrqOff => NAMES[1],
        ListGuard::TaskOnly => NAMES[2],
    }
}

/// The text of the arm with this guard.
pub fn about(lists: ListGuard) -> &'static str {
    match lists {
        ListGuard::Reentry => {
            "PageAllocator on a bare hosted machine, with lists for every context behind a re-entry flag, \
             checked frees and statistics. Bare: the CPU's number is one load, as in a kernel, and the \
             machine checks nothing and injects no failure."
        }
        ListGuard::IrqOff => {
            "as `quire`, with interrupts off around every use of a list, as in Linux before and after 2017. \
             A process cannot execute cli and sti; it pays for pushf, popf (HostedConfig::interrupt_price) \
             and a flag instead."
        }
        ListGuard::TaskOnly => {
            "as `quire`, with lists for tasks only: interrupts take the store's locks (the published scheme \
             of 2017)."
        }
    }
}

/// An arm with one guard.
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
    /// If the host or the allocator refuses the machine.
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

/// An allocator over all memory of a machine without checks, which would be measured too. `zeroed` if the
/// memory was never written.
///
/// # Errors
/// If the allocator refuses the machine.
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
