//! The slow path of a per-CPU list: refills it when empty, and parks or drains folios when full.

use core::sync::atomic::{AtomicU8, Ordering};

use crate::addr::{Frame, FrameRange, Order};
use crate::error::FreeError;
use crate::limits::{NESTED_BATCH, PCP_BATCH};
use crate::memmap::{Block, FrameState, LISTS};
use crate::page_alloc::pcp::Lists;
use crate::page_alloc::pcp::level::{HUGE, LEVELS, order_of};
use crate::page_alloc::pcp::list::{FrameList, Other, add_own};
use crate::page_alloc::pcp::list_access::ListAccess;
use crate::page_alloc::pcp::parked::{Parked, start_magazine};
use crate::page_alloc::request::gfp::{Contents, Gfp};
use crate::page_alloc::store::search::Search;
use crate::page_alloc::store::sorting::SortEntry;
use crate::page_alloc::store::zone::Zone;
use crate::platform::FramePlatform;
use crate::stats::Stat;

/// A list that the running code owns, and what belongs to it.
#[derive(Clone, Copy)]
pub(in crate::page_alloc) struct OwnList<'a> {
    pub(in crate::page_alloc) list: &'a FrameList,
    pub(in crate::page_alloc) zone: &'a Zone,
    /// Its number among the lists of its zone.
    pub(in crate::page_alloc) number: usize,
    /// Its parked magazines, if it may park.
    pub(in crate::page_alloc) parked: Option<&'a Parked>,
    /// Sorts folios that go back to the store.
    pub(in crate::page_alloc) sorter: &'a [SortEntry],
    /// Whether locks may be waited for.
    pub(in crate::page_alloc) wait: bool,
}

/// Why a list gave no folio.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::page_alloc) enum NotTaken {
    /// There is no list, or the store was not asked to refill it, or an interrupt asked it and skipped what was locked.
    NoneListed,
    /// The zone's store has none either: a search that waits for locks has looked everywhere.
    NoneFree,
}

impl OwnList<'_> {
    pub(in crate::page_alloc) fn magazine_frames(&self) -> u64 {
        self.list.magazine_frames(order_of(self.number))
    }
}

impl<P: FramePlatform> Lists<'_, P> {
    /// The list with this index in the level that `access` uses.
    pub(in crate::page_alloc) fn own_list<'a>(
        &'a self,
        access: &ListAccess<'a>,
        at: usize,
    ) -> Option<OwnList<'a>> {
        let level = access.level()?;
        let (zone, number) = (at / LISTS, at % LISTS);
        Some(OwnList {
            list: level.list(zone, number),
            zone: &self.store.zones[zone],
            number,
            parked: level.parked(at),
            sorter: &access.lists.sorter,
            wait: access.wait,
        })
    }

    /// Takes a folio from one of the lists, and refills it first if it is empty.
    pub(in crate::page_alloc) fn list_take(
        &self,
        access: &ListAccess<'_>,
        zone: usize,
        number: usize,
        gfp: Gfp,
    ) -> Result<Frame, NotTaken> {
        let own = self.own_list(access, zone * LISTS + number).ok_or(NotTaken::NoneListed)?;
        let popped = self.pop_loading(own).map_or_else(|| self.refill(access, own, gfp), Ok);
        let (frame, state) = popped.or_else(|why| self.pop_last(own.list).ok_or(why))?;
        let zeroed = FrameState::of(state).is_zeroed() && gfp.contents == Contents::Zeroed;
        self.frames().mark_in_use(frame, state, order_of(number), zeroed);
        add_own(&own.list.allocated, 1);
        Ok(frame)
    }

    /// Pops a folio from the loaded array, the other, or a parked magazine.
    pub(in crate::page_alloc) fn pop_loading<'a>(
        &'a self,
        own: OwnList<'a>,
    ) -> Option<(Frame, &'a AtomicU8)> {
        let list = own.list;
        if list.len() == 0 && list.other() > Other::Empty {
            list.exchange();
        }
        list.pop().or_else(|| self.pop_parked(own))
    }

    /// Loads a parked magazine, and pops a folio: the one in which the list's empty magazine stood, if any.
    fn pop_parked<'a>(&'a self, own: OwnList<'a>) -> Option<(Frame, &'a AtomicU8)> {
        let full = own.parked?.unpark(self.platform(), own.wait)?;
        let last = self.pop_last(own.list);
        own.list.load(full, own.list.capacity());
        last.or_else(|| own.list.pop())
    }

    /// Takes the folio that an empty list's magazine stands in, if it has one; home stays loaded.
    pub(in crate::page_alloc) fn pop_last<'l>(
        &'l self,
        list: &'l FrameList,
    ) -> Option<(Frame, &'l AtomicU8)> {
        let (magazine, len) = list.unload()?;
        debug_assert_eq!(len, 0);
        list.note_flow(-1);
        let frame = magazine.own().0;
        Some((frame, self.frames().state_cell(self.frames().memmap.block(frame.block()), frame)))
    }

    /// Must come before a list of the caller's gets a folio: from now on other CPUs look at this CPU's lists,
    /// and the common path at this one.
    fn note_filled(&self, access: &ListAccess<'_>, list: &FrameList) {
        if access.lists.known_empty() {
            access.lists.empty.store(false, Ordering::Relaxed);
        }
        if access.level == Some(0) {
            list.open(&access.lists.levels[0].lease);
        }
    }

    /// Refills an empty list from the zone, within its mark, and takes one folio.
    #[cold]
    #[inline(never)]
    fn refill<'a>(
        &'a self,
        access: &ListAccess<'_>,
        own: OwnList<'a>,
        gfp: Gfp,
    ) -> Result<(Frame, &'a AtomicU8), NotTaken> {
        let (list, zone, order) = (own.list, own.zone, order_of(own.number));
        let most = if own.parked.is_some() { PCP_BATCH } else { NESTED_BATCH };
        let batch = (list.batch.load(Ordering::Relaxed) as usize).min(list.capacity()).min(most);
        let allowed = zone.allowance(gfp.urgency, gfp.zone) >> order.get();
        let wanted = batch.min(allowed as usize);
        // A zone that is short refills nothing; the next one serves.
        let got = if wanted > 0 { self.fetch_onto(access, own, gfp, wanted) } else { 0 };
        // A zone without a folio to give is not asked for more of them the next time.
        if got > 0 {
            list.batch.store((batch as u32 * 2).clamp(4, PCP_BATCH as u32), Ordering::Relaxed);
        }
        list.note_flow(-(got as i64));
        if let Some(parked) = own.parked {
            parked.raise_mark(self.platform(), own.wait, got, zone.free_frames() < zone.marks.high());
        }
        list.pop().ok_or(if wanted > 0 && own.wait { NotTaken::NoneFree } else { NotTaken::NoneListed })
    }

    /// Takes folios from the zone's store onto an empty list; returns how many.
    #[inline(never)]
    fn fetch_onto(&self, access: &ListAccess<'_>, own: OwnList<'_>, gfp: Gfp, wanted: usize) -> usize {
        let mut frames = [Frame(0); PCP_BATCH];
        let out = &mut frames[..wanted];
        let got = self.frames().in_store(|| self.fetch(access, own.zone, own.number, gfp, out));
        self.frames().count(Stat::PcpRefill, 1);
        if got > 0 {
            self.note_filled(access, own.list);
        }
        // The lowest address is popped first, so that neighbours in time are neighbours in memory.
        let mut last = None;
        own.list.push_all(frames[..got].iter().rev().map(|&frame| {
            // Mostly all are of one block.
            let block = match last {
                Some((number, block)) if number == frame.block() => block,
                _ => self.frames().memmap.block(frame.block()),
            };
            last = Some((frame.block(), block));
            (frame, self.frames().state_cell(block, frame))
        }));
        got
    }

    /// Takes folios for a list from the zone's store; returns how many.
    fn fetch(
        &self,
        access: &ListAccess<'_>,
        zone: &Zone,
        number: usize,
        gfp: Gfp,
        out: &mut [Frame],
    ) -> usize {
        let order = order_of(number);
        if number != HUGE {
            let search = Search { listed: true, ..Search::new(zone, access.cpu, gfp, order, access.wait) };
            return self.store.store_take(zone, search, out);
        }
        let mut got = 0;
        for slot in out {
            let Some((frame, zeroed)) = self.store.take_whole(zone, order, gfp.contents, access.wait) else {
                break;
            };
            self.frames().mark_free(self.frames().memmap.block(frame.block()), frame, order, zeroed);
            *slot = frame;
            got += 1;
        }
        got
    }

    /// Puts a folio onto its list. `Ok(false)`: no list takes it, and the caller frees it another way.
    ///
    /// # Errors
    /// [`FreeError`]; nothing has changed then.
    pub(in crate::page_alloc) fn list_put(
        &self,
        access: &ListAccess<'_>,
        frame: Frame,
        order: Order,
    ) -> Result<bool, FreeError> {
        let block = self.frames().memmap.get(frame.block()).ok_or(FreeError::NotMemory)?;
        let number = match order.get() {
            small @ 0..=8 => {
                self.frames().check_listable(block, frame, order)?;
                usize::from(small) * 3 + usize::from(block.mobility())
            }
            9 => {
                self.frames().check_whole(block, frame, order)?;
                HUGE
            }
            _ => return Ok(false),
        };
        // A block with lanes of counts or bad frames must not wait on a list.
        let own = self
            .own_list(access, block.zone() * LISTS + number)
            .filter(|_| number != HUGE || block.lanes_at().is_none() && block.used.load().is_empty());
        let Some(own) = own.filter(|own| self.has_room(*own)) else { return Ok(false) };
        self.note_filled(access, own.list);
        self.frames().note_freed(FrameRange::folio(frame, order));
        self.frames().mark_free(block, frame, order, false);
        self.push_loading(own, block, frame);
        Ok(true)
    }

    /// Whether a list has room for one more folio, in an array or for a new magazine; makes some if need be.
    fn has_room(&self, own: OwnList<'_>) -> bool {
        let list = own.list;
        if list.capacity() == 0 {
            return false;
        }
        let full = list.len() == list.capacity() && list.other() == Other::Full;
        !full || self.park_or_drain(own)
    }

    /// Pushes a folio marked free onto a list with room: into either array, or as a new magazine.
    fn push_loading(&self, own: OwnList<'_>, block: &Block, frame: Frame) {
        let (list, state) = (own.list, self.frames().state_cell(block, frame));
        if list.push(frame, state) {
            return;
        }
        if list.other() == Other::None {
            list.load(start_magazine(self.platform(), frame, state), 0);
            list.note_flow(1);
            return;
        }
        list.exchange();
        let pushed = list.push(frame, state);
        debug_assert!(pushed, "the caller has made room");
    }

    /// Parks the magazine of a full list, or drains its older array; returns whether there is room now.
    #[cold]
    fn park_or_drain(&self, own: OwnList<'_>) -> bool {
        let park = |parked: &Parked| {
            parked.park(self.platform(), own.list, own.zone, own.magazine_frames(), own.wait)
        };
        let parks = own.parked.is_some_and(park);
        if !parks && own.wait {
            self.frames().in_store(|| self.drain_other(own, own.sorter));
        }
        parks || own.wait
    }
}

const _: () = assert!(LEVELS > 1 && NESTED_BATCH <= PCP_BATCH);
