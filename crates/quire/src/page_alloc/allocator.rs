//! The page allocator: what it is made of, and what it counts.

use core::sync::atomic::AtomicU64;

use crate::addr::Frame;
use crate::clear::Clearer;
use crate::cpu::CpuId;
use crate::memmap::{BlockState, BootSlice, Descriptor, MemMap};
use crate::page_alloc::folio::deferred_list::DeferredSplits;
use crate::page_alloc::init::config::Zeroes;
use crate::page_alloc::mapcount::scheme::CountScheme;
use crate::page_alloc::mapcount::slots::CountRoom;
use crate::page_alloc::pcp::level::{CpuLists, LEVELS};
use crate::page_alloc::request::gfp::ZoneKind;
use crate::page_alloc::request::placement::Placement;
use crate::page_alloc::store::zone::Zone;
use crate::platform::FramePlatform;
#[cfg(feature = "published")]
use crate::platform::ListGuard;
use crate::stats::{Stat, StatCells};
use crate::sync::{Pinned, SpinLock, Stack};

/// Hands out and takes back page frames of one machine.
pub struct PageAllocator<'p, P: FramePlatform> {
    pub(in crate::page_alloc) platform: &'p P,
    pub(in crate::page_alloc) memmap: MemMap,
    pub(in crate::page_alloc) clearer: Clearer,
    pub(in crate::page_alloc) zones: BootSlice<Zone>,
    pub(in crate::page_alloc) placement: Placement,
    pub(in crate::page_alloc) group_by_mobility: bool,
    pub(in crate::page_alloc) scheme: CountScheme,
    pub(in crate::page_alloc) zeroes: Zeroes,
    pub(in crate::page_alloc) cpus: BootSlice<CpuLists>,
    /// Folios of order 9 parts of which could be freed if they were split.
    pub(in crate::page_alloc) deferred: SpinLock<DeferredSplits>,
    /// Slots for the map counts of folios of whole blocks that are mapped in pieces.
    pub(in crate::page_alloc) count_room: SpinLock<CountRoom>,
    /// Huge pages that were lent to leaves, the last of which is gone.
    pub(in crate::page_alloc) returned_huge: Stack,
    #[cfg(feature = "published")]
    pub(in crate::page_alloc) guard: ListGuard,
    /// Frames that went bad.
    pub(in crate::page_alloc) bad: AtomicU64,
    /// For each CPU, one for each context, so that an interrupt does not disturb what it interrupted.
    pub(in crate::page_alloc) stats: BootSlice<StatCells>,
    /// Frames of the ranges that the machine was given.
    pub(in crate::page_alloc) present: AtomicU64,
    /// Frames that hold the manager's tables, or are too few at a range's edge to be used.
    pub(in crate::page_alloc) reserved: u64,
}

impl<'p, P: FramePlatform> PageAllocator<'p, P> {
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

    /// The page descriptor of a frame of a block in small pieces, or of the folio of whole blocks that starts there. It
    /// holds whatever the frame's last owner left there.
    ///
    /// # Panics
    /// When there is none: descriptors of whole blocks do not exist.
    #[inline]
    pub fn descriptor(&self, frame: Frame) -> &Descriptor {
        let block = self.memmap.block(frame.block());
        if block.state() == BlockState::Folio { block.folio() } else { self.memmap.descriptor(frame) }
    }

    /// Counts an event on the running CPU.
    #[inline]
    pub fn count(&self, stat: Stat, events: u64) {
        let pinned = Pinned::new(self.platform);
        self.cells(pinned.cpu()).add(stat, events);
    }

    /// Changes an amount that is counted, on the running CPU.
    #[inline]
    pub fn change(&self, stat: Stat, by: i64) {
        let pinned = Pinned::new(self.platform);
        self.cells(pinned.cpu()).change(stat, by);
    }

    #[inline]
    pub(in crate::page_alloc) fn cells(&self, cpu: CpuId) -> &StatCells {
        &self.stats[cpu.index() * LEVELS + self.platform.context() as usize]
    }

    #[inline]
    pub(in crate::page_alloc) fn count_alloc(&self, cpu: CpuId, zone: usize, frames: u64) {
        let stat = match self.zones[zone].kind {
            ZoneKind::Dma32 => Stat::PgallocDma32,
            ZoneKind::Normal => Stat::PgallocNormal,
            ZoneKind::Movable => Stat::PgallocMovable,
        };
        self.cells(cpu).add(stat, frames);
    }
}
