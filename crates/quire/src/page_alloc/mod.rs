//! The page allocator: zones and nodes, the block store, per-CPU lists, bulk requests, and map counts.
//!
//! A request goes to the running CPU's list first (`pcp`), then to the store of the first zone that may serve it
//! (`store` below a block's size, `whole` from there on), and on to other zones and nodes (`zone`). Frames that page
//! tables map come back through [`Counter`] without anybody looking at their descriptors (`counts`).

mod bulk;
mod contig;
mod counts;
mod gfp;
mod info;
mod init;
mod layout;
mod nested;
mod node_set;
mod pcp;
mod placement;
mod pool;
mod runs;
mod search;
mod shard;
mod store;
mod validate;
mod whole;
mod zone;

pub use counts::{CountError, Counter};
pub use gfp::{Gfp, Mobility, NodePolicy, Urgency, ZoneKind};
pub use info::{MemoryInfo, ZoneInfo};
pub use init::{AllocatorConfig, ListGuard, MemoryRange};
pub use node_set::NodeSet;
pub use validate::Violation;
pub use zone::Watermarks;

use core::sync::atomic::{AtomicU64, Ordering};

use crate::addr::{Frame, Order};
use crate::cpu::CpuId;
use crate::error::{AllocError, FreeError};
use crate::memmap::{Block, BootSlice, Descriptor, DescriptorFlags, MemMap};
use crate::platform::Platform;
use crate::stats::{Stat, StatCells};
use crate::sync::Pinned;

use pcp::CpuLists;
use placement::{Placement, ZoneOrder};
use zone::Zone;

/// Hands out and takes back page frames of one machine.
pub struct PageAllocator<'p, P: Platform> {
    platform: &'p P,
    memmap: MemMap,
    zones: BootSlice<Zone>,
    placement: Placement,
    group_by_mobility: bool,
    cpus: BootSlice<CpuLists>,
    stats: BootSlice<StatCells>,
    /// Frames of the ranges that the machine was given.
    present: u64,
    /// Frames that hold the manager's tables, or are too few at a range's edge to be used.
    reserved: u64,
}

impl<'p, P: Platform> PageAllocator<'p, P> {
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

    /// The page descriptor of a frame of a block in small pieces, or of the folio of whole blocks that starts there.
    ///
    /// # Panics
    /// When there is none: descriptors of whole blocks do not exist.
    #[inline]
    pub fn descriptor(&self, frame: Frame) -> &Descriptor {
        self.folio_descriptor(frame)
    }

    /// Takes a folio. Its contents are whatever was there. With a constant order and request, what is inlined into the
    /// caller is the common case alone: some fifty instructions.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`] when no zone that the request allows has a fitting folio above its mark,
    /// [`AllocError::BadNode`].
    #[inline(always)]
    pub fn alloc(&self, gfp: Gfp, order: Order) -> Result<Frame, AllocError> {
        if self.platform.fail_allocation() {
            return Err(AllocError::OutOfMemory);
        }
        let pinned = Pinned::new(self.platform);
        if let Some(list) = pcp::list_of(order, gfp.mobility)
            && gfp.nodes == NodePolicy::Local
            && let Some(frame) = self.take_listed(pinned.cpu(), list, gfp.zone)
        {
            return Ok(frame);
        }
        self.alloc_slow(pinned.cpu(), gfp, order)
    }

    /// Gives a folio back.
    ///
    /// # Errors
    /// [`FreeError`]; nothing has changed then.
    #[inline(always)]
    pub fn free(&self, frame: Frame, order: Order) -> Result<(), FreeError> {
        let pinned = Pinned::new(self.platform);
        if order == Order::FRAME && self.put_plain(pinned.cpu(), frame) {
            return Ok(());
        }
        self.free_slow(pinned.cpu(), frame, order)
    }

    /// The long way of an allocation: nested contexts, empty lists, other zones and nodes.
    #[cold]
    #[inline(never)]
    fn alloc_slow(&self, cpu: CpuId, gfp: Gfp, order: Order) -> Result<Frame, AllocError> {
        let lists = &self.cpus[cpu.index()];
        let zones = self.zones_for(cpu, gfp)?;
        if !lists.enter() {
            return self.alloc_nested(zones, cpu, gfp, order);
        }
        self.free_deferred(lists);
        let found = self.alloc_from(lists, zones, cpu, gfp, order).or_else(|| {
            // What this CPU hoards may be what is missing.
            self.drain_lists(lists);
            zones.iter().for_each(|&zone| {
                self.merge_spares(&self.zones[usize::from(zone)]);
            });
            self.alloc_from(lists, zones, cpu, gfp, order)
        });
        if let Some((_, zone)) = found {
            let list = pcp::list_of(order, gfp.mobility).unwrap_or_default();
            pcp::add_own(&lists.list(zone.into(), list).allocated, order.frames());
            self.count_placed(cpu, gfp, zones, zone.into(), order.frames());
        } else {
            self.cells(cpu).add(Stat::AllocFailed, 1);
        }
        lists.leave();
        found.map(|(frame, _)| frame).ok_or(AllocError::OutOfMemory)
    }

    /// The long way of a free: nested contexts, full lists, orders without a list, and whatever is wrong.
    #[cold]
    #[inline(never)]
    fn free_slow(&self, cpu: CpuId, frame: Frame, order: Order) -> Result<(), FreeError> {
        let lists = &self.cpus[cpu.index()];
        if !lists.enter() {
            return self.defer_free(lists, frame, order);
        }
        self.free_deferred(lists);
        let freed = match self.list_put(lists, frame, order) {
            Ok(true) => Ok(()),
            Ok(false) => self.store_free_checked(frame, order),
            Err(error) => Err(error),
        };
        lists.leave();
        if freed.is_ok() {
            self.cells(cpu).add(Stat::Pgfree, order.frames());
        }
        freed
    }

    /// Gives what this CPU keeps on its lists back to the store, and makes spare blocks whole.
    pub fn drain_local(&self) {
        let pinned = Pinned::new(self.platform);
        let lists = &self.cpus[pinned.cpu().index()];
        if lists.enter() {
            self.free_deferred(lists);
            self.drain_lists(lists);
            lists.leave();
        }
        self.zones.iter().for_each(|zone| {
            self.merge_spares(zone);
        });
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

    /// How often an event happened, or how much there is, on all CPUs together.
    pub fn stat(&self, stat: Stat) -> u64 {
        let through_lists = |counter: fn(&pcp::FrameList) -> &AtomicU64, kind: Option<ZoneKind>| -> u64 {
            let of_kind = |zone: &u8| kind.is_none_or(|kind| self.zones[usize::from(*zone)].kind == kind);
            let zones = (0..self.zones.len() as u8).filter(of_kind);
            let lists = zones.flat_map(|zone| self.cpus.iter().flat_map(move |cpu| cpu.of_zone(zone.into())));
            lists.map(|list| counter(list).load(Ordering::Relaxed)).sum()
        };
        let cells = self.stats.iter().map(|cells| cells.get(stat)).fold(0, u64::wrapping_add);
        cells
            + match stat {
                Stat::PgallocDma32 => through_lists(|list| &list.allocated, Some(ZoneKind::Dma32)),
                Stat::PgallocNormal => through_lists(|list| &list.allocated, Some(ZoneKind::Normal)),
                Stat::PgallocMovable => through_lists(|list| &list.allocated, Some(ZoneKind::Movable)),
                Stat::Pgfree => through_lists(|list| &list.freed, None),
                Stat::NumaHit => self.handed_out().saturating_sub(self.stat(Stat::NumaMiss)),
                Stat::NumaLocal => self.handed_out().saturating_sub(self.stat(Stat::NumaOther)),
                _ => 0,
            }
    }

    /// Frames handed out from any zone.
    fn handed_out(&self) -> u64 {
        [Stat::PgallocDma32, Stat::PgallocNormal, Stat::PgallocMovable]
            .map(|stat| self.stat(stat))
            .iter()
            .sum()
    }

    #[inline]
    fn cells(&self, cpu: CpuId) -> &StatCells {
        &self.stats[cpu.index()]
    }

    #[inline]
    fn count_alloc(&self, cpu: CpuId, zone: usize, frames: u64) {
        let stat = match self.zones[zone].kind {
            ZoneKind::Dma32 => Stat::PgallocDma32,
            ZoneKind::Normal => Stat::PgallocNormal,
            ZoneKind::Movable => Stat::PgallocMovable,
        };
        self.cells(cpu).add(stat, frames);
    }

    /// Tries each zone's list, then its store, in turn.
    fn alloc_from(
        &self,
        lists: &CpuLists,
        zones: ZoneOrder<'_>,
        cpu: CpuId,
        gfp: Gfp,
        order: Order,
    ) -> Option<(Frame, u8)> {
        zones.iter().find_map(|&number| {
            let zone = &self.zones[usize::from(number)];
            let listed = pcp::list_of(order, gfp.mobility)
                .and_then(|list| self.list_take(lists, cpu, usize::from(number), list, gfp));
            let frame = listed.or_else(|| {
                if zone.allowance(gfp.urgency, gfp.zone) < order.frames() {
                    return None;
                }
                if order >= Order::BLOCK {
                    return self.take_whole(zone, order, true);
                }
                let home = cpu.index() % zone.shards.len();
                let search = search::Search { mobility: gfp.mobility, order, home, wait: true };
                let mut frame = [Frame(0)];
                (self.store_take(zone, search, &mut frame) == 1).then_some(frame[0])
            })?;
            Some((frame, number))
        })
    }

    #[cold]
    fn alloc_nested(
        &self,
        zones: ZoneOrder<'_>,
        cpu: CpuId,
        gfp: Gfp,
        order: Order,
    ) -> Result<Frame, AllocError> {
        let take = |&zone: &u8| self.take_nested(&self.zones[usize::from(zone)], cpu, order, gfp);
        zones.iter().find_map(take).ok_or(AllocError::OutOfMemory)
    }

    /// A free that no list takes.
    fn store_free_checked(&self, frame: Frame, order: Order) -> Result<(), FreeError> {
        let block = self.memmap.get(frame.block()).ok_or(FreeError::NotMemory)?;
        if order < Order::BLOCK && block.descriptors().is_some() && self.is_listed(block, frame) {
            return Err(FreeError::DoubleFree);
        }
        self.store_free(frame, order)
    }

    /// Whether the frame, of a block in small pieces, lies on a per-CPU list.
    #[inline]
    fn is_listed(&self, block: &Block, frame: Frame) -> bool {
        self.memmap.descriptor_in(self.platform, block, frame).has(DescriptorFlags::LISTED)
    }
}
