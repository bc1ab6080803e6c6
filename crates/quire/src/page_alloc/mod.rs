//! The page allocator: zones and nodes, the block store, per-CPU lists, bulk requests, and map counts.
//!
//! A request goes to the running CPU's list first (`pcp`), then to the store of the first zone that may serve it
//! (`store` below a block's size, `whole` from there on), and on to other zones and nodes (`zone`). Frames that page
//! tables map come back through [`Counter`] without anybody looking at their descriptors (`counts`).

mod bad;
mod bulk;
mod contents;
mod contig;
mod count_group;
mod count_room;
mod count_scheme;
mod counts;
mod deferred;
mod drain;
mod folio;
mod folio_maps;
mod frame_info;
mod gfp;
mod guarded;
mod holds;
mod huge;
mod info;
mod init;
mod isolate;
mod isolated;
mod large_pieces;
mod layout;
mod list;
mod lists;
mod magazine;
mod mapped;
mod merge;
mod middle;
mod movable;
mod node_set;
mod origins;
mod owned;
mod pcp;
mod placement;
mod pool;
mod remainders;
mod room;
mod runs;
mod search;
mod shard;
mod sorter;
mod split;
mod store;
mod turn;
mod validate;
mod whole;
mod zero_ahead;
mod zeroes;
mod zone;

pub use bad::Verdict;
pub(crate) use bad::has_marks;
pub use count_group::CountGroup;
pub use count_scheme::CountScheme;
pub use counts::{CountError, Counter};
pub use drain::Drained;
pub use folio::{Folio, Folios, FrameRun};
pub use folio_maps::FolioMaps;
pub use frame_info::FrameInfo;
pub use gfp::{Contents, Gfp, Mobility, NodePolicy, Urgency, ZoneKind};
pub use info::{MemoryInfo, ZoneInfo};
pub use init::{AllocatorConfig, ListGuard, MemoryRange};
pub use node_set::NodeSet;
pub use origins::Origin;
pub use room::Room;
pub use validate::Violation;
pub use zeroes::Zeroes;
pub use zone::Watermarks;

use core::sync::atomic::AtomicU64;

use crate::addr::{Frame, Order};
use crate::clear::Clearer;
use crate::cpu::CpuId;
use crate::error::{AllocError, FreeError};
use crate::memmap::{BlockState, BootSlice, Descriptor, MemMap};
use crate::platform::FramePlatform;
use crate::stats::{Stat, StatCells};
use crate::sync::{Pinned, SpinLock, Stack};

use count_room::CountRoom;
use deferred::DeferredSplits;
use pcp::{CpuLists, LEVELS};
use placement::{Placement, ZoneOrder};
use turn::Turn;
use zone::Zone;

/// Hands out and takes back page frames of one machine.
pub struct PageAllocator<'p, P: FramePlatform> {
    platform: &'p P,
    memmap: MemMap,
    clearer: Clearer,
    zones: BootSlice<Zone>,
    placement: Placement,
    group_by_mobility: bool,
    scheme: CountScheme,
    zeroes: Zeroes,
    cpus: BootSlice<CpuLists>,
    /// Folios of order 9 parts of which could be freed if they were split.
    deferred: SpinLock<DeferredSplits>,
    /// Slots for the map counts of folios of whole blocks that are mapped in pieces.
    count_room: SpinLock<CountRoom>,
    /// Huge pages that were lent to leaves, the last of which is gone.
    returned_huge: Stack,
    guard: ListGuard,
    /// Frames that went bad.
    bad: AtomicU64,
    /// For each CPU, one for each context, so that an interrupt does not disturb what it interrupted.
    stats: BootSlice<StatCells>,
    /// Frames of the ranges that the machine was given.
    present: u64,
    /// Frames that hold the manager's tables, or are too few at a range's edge to be used.
    reserved: u64,
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

    /// Takes a folio. Its contents are whatever was there. With a constant order and request, what is inlined into the
    /// caller is the common case alone: some thirty instructions.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`] when no zone that the request allows has a fitting folio above its mark,
    /// [`AllocError::BadNode`].
    #[inline(always)]
    pub fn alloc(&self, gfp: Gfp, order: Order) -> Result<Folio, AllocError> {
        if self.platform.fail_allocation() {
            return Err(AllocError::OutOfMemory);
        }
        let pinned = Pinned::new(self.platform);
        if let Some(list) = pcp::list_of(order, gfp.mobility)
            && gfp.nodes == NodePolicy::Local
            && let Some((frame, state)) = self.take_listed(pinned.cpu(), list, gfp.zone)
        {
            // Behind the lease: the frame is ours, and what depends on its number need not hold up what follows.
            self.mark_in_use(frame, state, order, false);
            return Ok(self.folio(frame, order));
        }
        // The slow path asks for the CPU again, so that its number need not be kept for it.
        drop(pinned);
        Ok(self.folio(self.alloc_unlisted(gfp, order)?, order))
    }

    /// Frees a folio.
    ///
    /// # Errors
    /// [`FreeError`]: something else refers to the folio, against the contracts of what took it by number. Its frames
    /// stay in use for good then, which harms nobody.
    #[inline(always)]
    pub fn free(&self, folio: Folio) -> Result<(), FreeError> {
        let (frame, order) = self.take_back(folio)?;
        let pinned = Pinned::new(self.platform);
        if self.put_untouched(pinned.cpu(), frame, order) {
            return Ok(());
        }
        drop(pinned);
        self.free_unlisted(frame, order)
    }

    /// The long way of an allocation: guarded and nested lists, empty lists, other zones and nodes.
    #[cold]
    #[inline(never)]
    fn alloc_slow(&self, gfp: Gfp, order: Order) -> Result<Frame, AllocError> {
        let pinned = Pinned::new(self.platform);
        let cpu = pinned.cpu();
        if self.guard != ListGuard::Reentry
            && let Some(frame) = self.take_guarded(cpu, gfp, order)
        {
            return Ok(frame);
        }
        let zones = self.zones_for(cpu, gfp)?;
        let turn = self.begin(cpu);
        if turn.wait {
            self.clear_up(turn.lists);
        }
        let found = self.alloc_from(&turn, zones, gfp, order);
        if let Some(frame) = found.filter(|_| middle::is_middle(order)) {
            self.remember_block(cpu, gfp, frame);
        }
        let found =
            if turn.wait { found.or_else(|| self.alloc_scraping(&turn, zones, gfp, order)) } else { found };
        self.end(&turn);
        let thorough = turn.wait && is_thorough(gfp, order);
        let found =
            if thorough { found.or_else(|| self.alloc_from_others(cpu, zones, gfp, order)) } else { found };
        if found.is_none() {
            self.cells(cpu).add(Stat::AllocFailed, 1);
        }
        found.ok_or(AllocError::OutOfMemory)
    }

    /// What this CPU hoards may be what is missing: gives it back some frames at a time and tries again, once, or until
    /// nothing is left if the request is worth it.
    #[cold]
    fn alloc_scraping(&self, turn: &Turn<'_>, zones: ZoneOrder<'_>, gfp: Gfp, order: Order) -> Option<Frame> {
        loop {
            let scraped = self.in_store(|| self.scrape(turn));
            let found = self.alloc_from(turn, zones, gfp, order);
            if found.is_some() || scraped == 0 || !is_thorough(gfp, order) {
                return found;
            }
        }
    }

    /// The last resort: what other CPUs hoard, some of it at a time.
    #[cold]
    fn alloc_from_others(&self, cpu: CpuId, zones: ZoneOrder<'_>, gfp: Gfp, order: Order) -> Option<Frame> {
        if !self.others_hoard(zones, cpu) {
            return None;
        }
        loop {
            let more = self.drain_others(cpu);
            let turn = self.begin(cpu);
            let found = self.alloc_from(&turn, zones, gfp, order);
            self.end(&turn);
            if found.is_some() || !more {
                return found;
            }
        }
    }

    /// The long way of a free: guarded and nested lists, full lists, orders without a list, and whatever is wrong.
    #[cold]
    #[inline(never)]
    fn free_slow(&self, frame: Frame, order: Order) -> Result<(), FreeError> {
        let pinned = Pinned::new(self.platform);
        let cpu = pinned.cpu();
        if self.guard != ListGuard::Reentry && self.put_guarded(cpu, frame, order) {
            return Ok(());
        }
        if self.put_untouched_far(cpu, frame, order) {
            return Ok(());
        }
        let turn = self.begin(cpu);
        if turn.wait {
            self.clear_up(turn.lists);
        }
        let listed = self.list_put(&turn, frame, order);
        let freed = match listed {
            Ok(true) => Ok(()),
            Ok(false) if turn.wait => self.in_store(|| self.store_free(frame, order, Contents::Unknown)),
            Ok(false) => self.free_without_waiting(turn.lists, frame, order),
            Err(error) => Err(error),
        };
        self.end(&turn);
        if freed.is_ok() && listed == Ok(false) {
            self.cells(cpu).add(Stat::Pgfree, order.frames());
        }
        freed
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
        let through_lists = |count: fn(&list::FrameList) -> u64, kind: Option<ZoneKind>| -> u64 {
            let of_kind = |at: usize| kind.is_none_or(|kind| self.zones[at / pcp::LISTS].kind == kind);
            let lists = self.cpus.iter().flat_map(|cpu| &cpu.levels).flat_map(|level| level.indexed());
            let counted = lists.filter(|&(at, _)| of_kind(at));
            counted.map(|(at, list)| count(list) << pcp::order_of(at % pcp::LISTS).get()).sum()
        };
        let cells = self.stats.iter().map(|cells| cells.get(stat)).fold(0, u64::wrapping_add);
        cells
            + match stat {
                Stat::PgallocDma32 => through_lists(list::FrameList::handed_out, Some(ZoneKind::Dma32)),
                Stat::PgallocNormal => through_lists(list::FrameList::handed_out, Some(ZoneKind::Normal)),
                Stat::PgallocMovable => through_lists(list::FrameList::handed_out, Some(ZoneKind::Movable)),
                Stat::Pgfree => through_lists(list::FrameList::freed, None),
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
        &self.stats[cpu.index() * LEVELS + self.platform.context() as usize]
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
    fn alloc_from(&self, turn: &Turn<'_>, zones: ZoneOrder<'_>, gfp: Gfp, order: Order) -> Option<Frame> {
        zones.iter().find_map(|&number| {
            let zone = &self.zones[usize::from(number)];
            let listed = pcp::list_of(order, gfp.mobility)
                .and_then(|list| self.list_take(turn, usize::from(number), list, gfp));
            if listed.is_some() {
                self.count_placed(turn.cpu, gfp, zones, number.into(), order.frames());
                return listed;
            }
            if zone.allowance(gfp.urgency, gfp.zone) < order.frames() {
                return None;
            }
            let frame = self.in_store(|| self.take_one(turn, zone, gfp, order))?;
            self.count_alloc(turn.cpu, usize::from(number), order.frames());
            self.count_placed(turn.cpu, gfp, zones, number.into(), order.frames());
            Some(frame)
        })
    }

    /// Takes one folio straight from a zone's store.
    fn take_one(&self, turn: &Turn<'_>, zone: &Zone, gfp: Gfp, order: Order) -> Option<Frame> {
        let mut frame = [Frame(0)];
        (self.take_some(zone, turn.cpu, gfp, turn.wait, order, &mut frame) == 1).then_some(frame[0])
    }

    /// Takes folios straight from a zone's store: one of whole blocks, or as many smaller ones as `out` has room for and
    /// the zone has; how many.
    fn take_some(
        &self,
        zone: &Zone,
        cpu: CpuId,
        gfp: Gfp,
        wait: bool,
        order: Order,
        out: &mut [Frame],
    ) -> usize {
        let Some(first) = out.first_mut() else { return 0 };
        if order < Order::BLOCK {
            return self.store_take(zone, search::Search::new(zone, cpu, gfp, order, wait), out);
        }
        let taken = self.take_whole(zone, order, gfp.contents, wait);
        taken.inspect(|&(frame, _)| *first = frame).map_or(0, |_| 1)
    }
}

/// Whether memory must not count as out while any CPU hoards some that could be made fit: a frame is missing, or the
/// request may take everything. Others are content with what a bounded search finds, and fall back.
fn is_thorough(gfp: Gfp, order: Order) -> bool {
    order == Order::FRAME || gfp.urgency == Urgency::Reserve
}
