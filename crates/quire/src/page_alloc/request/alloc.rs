//! Allocation and free: the common case, inlined into callers, and the slow path behind it.

use crate::addr::{Frame, Order};
use crate::cpu::CpuId;
use crate::error::{AllocError, FreeError};
use crate::limits::BLOCK_FRAMES;
use crate::memmap::BLOCK_TABLES;
use crate::nodes::NodePolicy;
use crate::page_alloc::frames::owned::Folio;
use crate::page_alloc::pcp::level::{self as pcp, CpuLists};
use crate::page_alloc::pcp::list_access::ListAccess;
use crate::page_alloc::pcp::lists::NotTaken;
use crate::page_alloc::request::Requests;
use crate::page_alloc::request::gfp::{Contents, Gfp, Urgency};
use crate::page_alloc::request::placement::{ZoneOrder, node_of};
use crate::page_alloc::store::search::Search;
use crate::page_alloc::store::zone::Zone;
use crate::platform::{Context, Event, FramePlatform};
use crate::stats::Stat;
use crate::sync::Pinned;

/// The fewest frames that count as free of a block in small pieces that can become whole: its own tables do not.
const FREE_BLOCK: u64 = (BLOCK_FRAMES - BLOCK_TABLES) as u64;

impl<P: FramePlatform> Requests<'_, P> {
    /// Allocates a folio. Its contents are whatever was there. With a constant order and request, only the
    /// common case is inlined into the caller: some thirty instructions.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`] when no zone that the request allows has a fitting folio above its mark,
    /// [`AllocError::BadNode`].
    #[inline(always)]
    pub fn alloc(&self, gfp: Gfp, order: Order) -> Result<Folio, AllocError> {
        if self.platform().fail_allocation() {
            return Err(AllocError::OutOfMemory);
        }
        let pinned = Pinned::new(self.platform());
        if let Some(list) = pcp::list_of(order, gfp.mobility)
            && gfp.nodes == NodePolicy::Local
            && let Some((frame, state)) = self.lists.take_listed(pinned.cpu(), list, gfp.zone)
        {
            // After the lease: the frame is the caller's, and work on its number does not prolong the lease.
            self.frames().mark_in_use(frame, state, order, false);
            return Ok(self.frames().folio(frame, order));
        }
        // The slow path asks for the CPU again, so that this path need not keep its number.
        drop(pinned);
        let frame = self.alloc_slow(gfp, order)?;
        self.store().drop_marks(gfp, order, &[frame]);
        Ok(self.frames().folio(frame, order))
    }

    /// Frees a folio.
    ///
    /// # Errors
    /// [`FreeError`]: something still refers to the folio, against the contract of a call that took it by
    /// number. Its frames stay in use for good then, which harms no other frame.
    #[inline(always)]
    pub fn free(&self, folio: Folio) -> Result<(), FreeError> {
        let (frame, order) = self.frames().take_back(folio)?;
        let pinned = Pinned::new(self.platform());
        if self.lists.put_untouched(pinned.cpu(), frame, order) {
            return Ok(());
        }
        drop(pinned);
        self.free_slow(frame, order)
    }

    /// The slow path of an allocation: guarded and nested lists, empty lists, other zones and nodes.
    #[cold]
    #[inline(never)]
    pub(in crate::page_alloc) fn alloc_slow(&self, gfp: Gfp, order: Order) -> Result<Frame, AllocError> {
        let pinned = Pinned::new(self.platform());
        let cpu = pinned.cpu();
        #[cfg(feature = "published")]
        if !self.frames().lists_are_open()
            && let Some(frame) = self.lists.take_guarded(cpu, gfp, order)
        {
            return Ok(frame);
        }
        let zones = self.zones_for(cpu, gfp)?;
        let lists = self.lists.lists_of(cpu);
        // Before the lease, since a refusal needs no list.
        let exhausted = lists.deferred.is_empty() && self.is_exhausted(lists, zones, gfp, order);
        let found = if exhausted { None } else { self.alloc_from_own(cpu, zones, gfp, order) };
        // To drain other CPUs' lists is to wait for their interrupts.
        let thorough = || {
            let wait = self.platform().context() == Context::Task;
            wait && is_thorough(gfp, order) && gfp.urgency != Urgency::Atomic
        };
        let found = if found.is_none() && thorough() {
            self.alloc_from_others(cpu, zones, gfp, order)
        } else {
            found
        };
        if found.is_none() {
            self.frames().cells(cpu).add(Stat::AllocFailed, 1);
            self.platform().event(Event::OutOfMemory { order });
        }
        found.ok_or(AllocError::OutOfMemory)
    }

    /// Tries this CPU's lists and the store; without success it gives some of its lists' folios back, and tries again.
    fn alloc_from_own(&self, cpu: CpuId, zones: ZoneOrder<'_>, gfp: Gfp, order: Order) -> Option<Frame> {
        let access = self.lists.begin(cpu);
        if access.wait {
            self.lists.clear_up(access.lists);
        }
        let found = self.alloc_from(&access, zones, gfp, order);
        let found = if access.wait {
            found.or_else(|| self.alloc_scraping(&access, zones, gfp, order))
        } else {
            found
        };
        self.lists.end(&access);
        found
    }

    /// Whether only another CPU's lists can serve the request: this CPU's are empty, its zones have too few frames, and no
    /// zone has a block of them, so that no spare block is entirely free and could give up its tables.
    #[inline]
    fn is_exhausted(&self, lists: &CpuLists, zones: ZoneOrder<'_>, gfp: Gfp, order: Order) -> bool {
        if !lists.known_empty() {
            return false;
        }
        // A larger request may be served by a spare block that gives up its tables, too.
        let wanted = order.frames().min(FREE_BLOCK);
        let all = &self.store().zones;
        let most = all.iter().map(Zone::free_frames).max().unwrap_or(0);
        let is_short = |&number: &u8| {
            let zone = &all[usize::from(number)];
            zone.allowance(gfp.urgency, gfp.zone) < wanted
        };
        // Where no zone has so many frames, the marks of those that may serve need no look.
        most < wanted || most < FREE_BLOCK && zones.iter().all(is_short)
    }

    /// Drains this CPU's lists some frames at a time and tries again: once, unless they rest, or if thorough until they
    /// are empty.
    #[cold]
    fn alloc_scraping(
        &self,
        access: &ListAccess<'_>,
        zones: ZoneOrder<'_>,
        gfp: Gfp,
        order: Order,
    ) -> Option<Frame> {
        let thorough = is_thorough(gfp, order);
        let free = || zones.iter().map(|&zone| self.store().zones[usize::from(zone)].free_frames()).sum();
        let rest = &access.lists.rest;
        let rests = !thorough && rest.holds(free());
        loop {
            if self.frames().in_store(|| self.lists.scrape(access, rests)) == 0 {
                return None;
            }
            let found = self.alloc_from(access, zones, gfp, order);
            if found.is_some() {
                rest.end();
            } else if !thorough && !rests {
                rest.begin(free());
            }
            if found.is_some() || !thorough {
                return found;
            }
        }
    }

    /// The last resort: drains other CPUs' lists, some frames at a time.
    #[cold]
    fn alloc_from_others(&self, cpu: CpuId, zones: ZoneOrder<'_>, gfp: Gfp, order: Order) -> Option<Frame> {
        if !self.lists.others_hold_frames(zones, cpu) {
            return None;
        }
        loop {
            let more = self.lists.drain_others(cpu);
            let access = self.lists.begin(cpu);
            let found = self.alloc_from(&access, zones, gfp, order);
            self.lists.end(&access);
            if found.is_some() || !more {
                return found;
            }
        }
    }

    /// The slow path of a free: guarded and nested lists, full lists, orders without a list, and errors.
    #[cold]
    #[inline(never)]
    pub(in crate::page_alloc) fn free_slow(&self, frame: Frame, order: Order) -> Result<(), FreeError> {
        let pinned = Pinned::new(self.platform());
        let cpu = pinned.cpu();
        #[cfg(feature = "published")]
        if !self.frames().lists_are_open() && self.lists.put_guarded(cpu, frame, order) {
            return Ok(());
        }
        if self.lists.put_untouched_far(cpu, frame, order) {
            return Ok(());
        }
        let access = self.lists.begin(cpu);
        if access.wait {
            self.lists.clear_up(access.lists);
        }
        let listed = self.lists.list_put(&access, frame, order);
        let freed = match listed {
            Ok(true) => Ok(()),
            Ok(false) if access.wait => {
                self.frames().in_store(|| self.store().store_free(frame, order, Contents::Unknown))
            }
            Ok(false) => self.lists.free_without_waiting(access.lists, frame, order),
            Err(error) => Err(error),
        };
        self.lists.end(&access);
        if freed.is_ok() && listed == Ok(false) {
            self.frames().cells(cpu).add(Stat::Pgfree, order.frames());
        }
        freed
    }

    /// Tries each zone's list, then its store, in turn.
    pub(in crate::page_alloc) fn alloc_from(
        &self,
        access: &ListAccess<'_>,
        zones: ZoneOrder<'_>,
        gfp: Gfp,
        order: Order,
    ) -> Option<Frame> {
        zones.iter().find_map(|&number| {
            let zone = &self.store().zones[usize::from(number)];
            let listed = pcp::list_of(order, gfp.mobility)
                .ok_or(NotTaken::NoneListed)
                .and_then(|list| self.lists.list_take(access, usize::from(number), list, gfp));
            if let Ok(frame) = listed {
                self.count_placed(access.cpu, gfp, zones, number.into(), order.frames());
                if order == Order::FRAME {
                    self.serve_from(access, zones, gfp, number);
                }
                return Some(frame);
            }
            if listed == Err(NotTaken::NoneFree) || zone.allowance(gfp.urgency, gfp.zone) < order.frames() {
                return None;
            }
            let frame = self.frames().in_store(|| self.take_one(access, zone, gfp, order))?;
            self.store().count_alloc(access.cpu, usize::from(number), order.frames());
            self.count_placed(access.cpu, gfp, zones, number.into(), order.frames());
            Some(frame)
        })
    }

    /// Lets the common path take from the lists of a zone that just served a frame, until they are empty. Not
    /// from another node: the slow path counts those frames.
    fn serve_from(&self, access: &ListAccess<'_>, zones: ZoneOrder<'_>, gfp: Gfp, zone: u8) {
        if gfp.nodes == NodePolicy::Local
            && zones.first_node() == Some(node_of(zone))
            && let Some(level) = access.level()
        {
            level.serve_from(gfp.zone, zone.into());
        }
    }

    /// Takes one folio straight from a zone's store.
    pub(in crate::page_alloc) fn take_one(
        &self,
        access: &ListAccess<'_>,
        zone: &Zone,
        gfp: Gfp,
        order: Order,
    ) -> Option<Frame> {
        let mut frame = [Frame(0)];
        (self.take_some(zone, access.cpu, gfp, access.wait, order, &mut frame) == 1).then_some(frame[0])
    }

    /// Takes one folio of whole blocks, or smaller ones until `out` is full, straight from a zone's store;
    /// how many.
    pub(in crate::page_alloc) fn take_some(
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
            return self.store().store_take(zone, Search::new(zone, cpu, gfp, order, wait), out);
        }
        let taken = self.store().take_whole(zone, order, gfp.contents, wait);
        taken.inspect(|&(frame, _)| *first = frame).map_or(0, |_| 1)
    }
}

/// Whether a request drains all lists before it fails: it wants one frame, or may take everything. Others fail
/// after a bounded search, and their callers fall back.
fn is_thorough(gfp: Gfp, order: Order) -> bool {
    order == Order::FRAME || gfp.urgency == Urgency::Reserve
}
