//! What is known of each frame: its record, state, descriptor and contents, and what refers to it.
//!
//! [`Frames`] is the lowest of the allocator's values. It knows nothing of free memory and hands nothing out.

pub(super) mod bad;
pub(super) mod checks;
pub(super) mod contents;
pub(super) mod folios;
pub(super) mod from_raw;
pub(super) mod guard;
pub(super) mod holds;
pub(super) mod huge;
pub(super) mod huge_zeroes;
pub(super) mod info;
pub(super) mod movable;
pub(super) mod origins;
pub(super) mod owned;
pub(super) mod partial_free;
pub(super) mod scheme;
pub(super) mod state;
pub(super) mod states;

use core::sync::atomic::AtomicU64;

use crate::addr::Frame;
use crate::clear::Clearer;
use crate::cpu::CpuId;
use crate::memmap::{BlockState, BootSlice, Descriptor, MemMap, described};
use crate::page_alloc::frames::scheme::CountScheme;
use crate::platform::FramePlatform;
#[cfg(feature = "published")]
use crate::platform::ListGuard;
use crate::stats::{Stat, StatCells};
use crate::sync::Pinned;

/// Contexts that can nest on a CPU: a task, a soft and a hard interrupt.
pub(in crate::page_alloc) const CONTEXTS: usize = 3;

/// The frames of one machine, free or in use.
pub struct Frames<'p, P: FramePlatform> {
    pub(in crate::page_alloc) platform: &'p P,
    pub(in crate::page_alloc) memmap: MemMap,
    pub(in crate::page_alloc) clearer: Clearer,
    pub(in crate::page_alloc) scheme: CountScheme,
    #[cfg(feature = "published")]
    pub(in crate::page_alloc) guard: ListGuard,
    /// Frames that went bad.
    pub(in crate::page_alloc) bad: AtomicU64,
    /// For each CPU one for each context, so that an interrupt does not disturb what it interrupted.
    pub(in crate::page_alloc) stats: BootSlice<StatCells>,
}

impl<'p, P: FramePlatform> Frames<'p, P> {
    /// The machine.
    #[inline]
    pub fn platform(&self) -> &'p P {
        self.platform
    }

    /// The memory map.
    #[inline]
    pub fn memmap(&self) -> &MemMap {
        &self.memmap
    }

    /// The descriptor of a frame whose owner asked for one
    /// ([`PageAllocator::describe`](crate::page_alloc::PageAllocator::describe)), or of the folio of whole
    /// blocks that starts there. It holds whatever the frame's last owner left there.
    ///
    /// # Panics
    /// When there is none.
    #[inline]
    pub fn descriptor(&self, frame: Frame) -> &Descriptor {
        let block = self.memmap.block(frame.block());
        match block.columns() {
            Some(columns) => described(columns.row(frame.index_in_block()), frame),
            None => described((block.state() == BlockState::Folio).then(|| block.folio()), frame),
        }
    }

    /// Counts an event on the running CPU.
    #[inline]
    pub fn count(&self, stat: Stat, events: u64) {
        let pinned = Pinned::new(self.platform);
        self.cells(pinned.cpu()).add(stat, events);
    }

    /// Changes a counted amount on the running CPU.
    #[inline]
    pub fn change(&self, stat: Stat, by: i64) {
        let pinned = Pinned::new(self.platform);
        self.cells(pinned.cpu()).change(stat, by);
    }

    /// Changes several counts on the running CPU, whose cells it finds once.
    #[inline(always)]
    pub(crate) fn change_all<const N: usize>(&self, changes: [(Stat, i64); N]) {
        let pinned = Pinned::new(self.platform);
        let cells = self.cells(pinned.cpu());
        for (stat, by) in changes {
            cells.change(stat, by);
        }
    }

    #[inline]
    pub(in crate::page_alloc) fn cells(&self, cpu: CpuId) -> &StatCells {
        let at = cpu.index() * CONTEXTS + self.platform.context() as usize;
        debug_assert!(at < self.stats.len());
        // SAFETY: G4: a platform names CPUs by numbers below `cpu_count`, and each has its sets.
        unsafe { self.stats.as_slice().get_unchecked(at) }
    }
}
