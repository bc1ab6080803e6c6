//! Folios go from per-CPU lists back to the store: what overflows, what has been idle, what another CPU needs.
//!
//! # Another CPU's lists
//!
//! Parked magazines are taken one by one under their list's lock; their owner notices nothing. What is left, two arrays of
//! at most [`PCP_CAPACITY`](crate::limits::PCP_CAPACITY) folios, is had by revoking the leases: one barrier on the owner's
//! CPU, after which it goes straight to the store until the leases are given back. A CPU that is offline is drained in the same way, and needs no
//! barrier.

use core::sync::atomic::Ordering;

use crate::addr::Frame;
use crate::cpu::{CpuId, CpuSet};
use crate::limits::{DRAIN_MAGAZINES, PCP_AGE_MAGAZINES, SCRAPE_FRAMES, VISIT_BLOCKS};
use crate::page_alloc::pcp::Lists;
use crate::page_alloc::pcp::level::{CpuLists, LISTS, Level, order_of};
use crate::page_alloc::pcp::list::{FrameList, Other};
use crate::page_alloc::pcp::list_access::ListAccess;
use crate::page_alloc::pcp::lists::OwnList;
use crate::page_alloc::pcp::parked::Parked;
use crate::page_alloc::request::placement::ZoneOrder;
use crate::page_alloc::store::sorting::{SortEntry, Sorting};
use crate::platform::{Event, FramePlatform};
use crate::stats::Stat;
use crate::sync::Pinned;

/// How far a drain got.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Drained {
    /// Frames that went back to the store.
    pub frames: u64,
    /// Whether there is more: call again.
    pub more: bool,
}

impl<P: FramePlatform> Lists<'_, P> {
    /// Gives what this CPU keeps on its lists back to the store, and makes spare blocks whole. Not from an interrupt.
    pub fn drain_local(&self) {
        let cpu = Pinned::new(self.platform()).cpu();
        while self.drain_cpu(cpu).more {}
        self.store.merge_all_spares();
    }

    /// Gives what all lists keep back to the store, and makes spare blocks whole. Not from an interrupt.
    pub fn drain_all(&self) {
        (0..self.cpus.len()).for_each(|cpu| while self.drain_cpu(CpuId(cpu as u32)).more {});
        self.store.merge_all_spares();
    }

    /// Gives what one CPU keeps on its lists back to the store, whichever CPU calls: what a CPU that has gone offline
    /// left, or what another CPU needs more. One call gives at most [`DRAIN_MAGAZINES`] parked magazines back, while
    /// the owner goes on as before; the call that finds no more of them empties the arrays, for which a CPU that is
    /// online is made to execute one barrier. Not from an interrupt.
    pub fn drain_cpu(&self, cpu: CpuId) -> Drained {
        let Some(lists) = self.cpus.get(cpu.index()) else { return Drained::default() };
        let pinned = Pinned::new(self.platform());
        let parked = || lists.levels[0].all_parked();
        let frames = self.drain_chains(pinned.cpu(), parked(), DRAIN_MAGAZINES);
        if parked().any(|(.., parked)| parked.count() > 0) {
            return Drained { frames, more: true };
        }
        Drained { frames: frames + self.drain_arrays(pinned.cpu(), cpu, lists), more: false }
    }

    /// Revokes a CPU's leases and empties its arrays; how many frames.
    fn drain_arrays(&self, own: CpuId, cpu: CpuId, lists: &CpuLists) -> u64 {
        let _revoker = lists.drain.lock(self.platform());
        lists.levels.iter().for_each(|level| {
            level.lease.revoke();
            level.set_open(false);
        });
        if cpu != own && self.platform().online_cpus().contains(cpu) {
            let mut target = CpuSet::EMPTY;
            target.insert(cpu);
            self.platform().fence_cpus(&target);
        }
        lists.levels.iter().for_each(|level| level.lease.wait_left(self.platform()));
        let frames = lists.levels.iter().map(|level| self.drain_level(level, &lists.sorter)).sum();
        lists.levels.iter().for_each(|level| {
            level.set_open(self.frames().lists_are_open());
            level.lease.give_back();
        });
        self.free_deferred(lists);
        frames
    }

    /// Lets lists shrink that were not refilled of late: call it from time to time (Linux: `decay_pcp_high`, every
    /// second or so), on any CPU, not from an interrupt. Each call lowers what each list may park by an eighth, and gives
    /// at most [`PCP_AGE_MAGAZINES`] magazines of each list back; no CPU is disturbed. How many frames went back.
    pub fn age_lists(&self) -> u64 {
        let pinned = Pinned::new(self.platform());
        let age = |parked: &Parked| parked.age(self.platform()).min(PCP_AGE_MAGAZINES);
        let parked = self.cpus.iter().flat_map(|lists| lists.levels[0].all_parked());
        parked.map(|one| self.drain_chains(pinned.cpu(), core::iter::once(one), age(one.2))).sum()
    }

    /// Lends the running CPU's sorter, or none if its lists are in use.
    fn with_sorter<R>(&self, cpu: CpuId, sort: impl FnOnce(&[SortEntry]) -> R) -> R {
        let own = &self.cpus[cpu.index()];
        if !own.levels[0].lease.enter_guarded() {
            return sort(&[]);
        }
        let result = sort(&own.sorter);
        own.levels[0].lease.leave();
        result
    }

    /// Gives up to [`SCRAPE_FRAMES`] frames of this CPU's lists back, and makes spare blocks whole; when
    /// there are none, what interrupts left on lists of their own. How many frames, folios and blocks.
    pub(in crate::page_alloc) fn scrape(&self, access: &ListAccess<'_>) -> u64 {
        let merged = self.store.merge_all_spares() as u64;
        let Some(level) = access.level() else { return merged };
        let mut scraped = 0;
        for (at, list) in level.indexed() {
            let Some(own) = self.own_list(access, at) else { break };
            let room = (SCRAPE_FRAMES - scraped) >> order_of(own.number).get();
            let take = || self.pop_loading(own).or_else(|| self.pop_last(list)).map(|(frame, _)| frame);
            let most = Most { folios: room.max(1) as usize, blocks: VISIT_BLOCKS };
            scraped += self.drain_list(list, own.number, most, &access.lists.sorter, take);
            if scraped >= SCRAPE_FRAMES {
                break;
            }
        }
        if scraped == 0 {
            scraped = self.drain_nested(access.lists);
        }
        scraped + merged
    }

    /// Gives back what interrupts left on the lists of the further levels, while no code is inside; how many frames.
    /// On the CPU itself only.
    pub(in crate::page_alloc) fn drain_nested(&self, lists: &CpuLists) -> u64 {
        let mut given = 0;
        for level in lists.levels[1..].iter().filter(|level| level.lease.enter_guarded()) {
            given += self.drain_level(level, &[]);
            level.lease.leave();
        }
        given
    }

    /// Gives everything in a level's arrays back; how many frames. The level and the sorter are the caller's.
    fn drain_level(&self, level: &Level, sorter: &[SortEntry]) -> u64 {
        let drain = |(at, list): (usize, &FrameList)| {
            list.batch.store(4, Ordering::Relaxed);
            self.drain_list(list, at % LISTS, Most::ALL, sorter, || self.pop_arrays(list))
        };
        level.indexed().filter(|(_, list)| list.cached() > 0).map(drain).sum()
    }

    /// Whether any other CPU keeps folios that these zones could use.
    pub(in crate::page_alloc) fn others_hoard(&self, zones: ZoneOrder<'_>, cpu: CpuId) -> bool {
        let hoards = |lists: &CpuLists| {
            let frames = |&zone: &u8| -> u64 {
                lists.levels.iter().map(|level| level.frames_of_zone(zone.into())).sum()
            };
            zones.iter().map(frames).sum::<u64>() + lists.deferred_frames.load(Ordering::Relaxed) > 0
        };
        self.cpus.iter().enumerate().any(|(other, lists)| other != cpu.index() && hoards(lists))
    }

    /// Takes some of what every other CPU hoards; whether there is more.
    #[cold]
    pub(in crate::page_alloc) fn drain_others(&self, cpu: CpuId) -> bool {
        let others = (0..self.cpus.len()).filter(|&other| other != cpu.index());
        let more = others.fold(false, |more, other| self.drain_cpu(CpuId(other as u32)).more | more);
        self.store.merge_all_spares();
        self.platform().event(Event::ListsDrained);
        more
    }

    /// Gives up to `most` parked magazines of some lists back, the ones parked last first; how many frames.
    fn drain_chains<'a>(
        &self,
        cpu: CpuId,
        lists: impl Iterator<Item = (usize, &'a FrameList, &'a Parked)>,
        most: u32,
    ) -> u64 {
        let (mut left, mut given) = (most, 0);
        for (at, list, parked) in lists {
            while left > 0 && parked.count() > 0 {
                given += self.with_sorter(cpu, |sorter| self.drain_magazine(at, list, parked, sorter));
                left -= 1;
            }
            parked.unbook(
                self.platform(),
                &self.store.zones[at / LISTS],
                list.magazine_frames(order_of(at % LISTS)),
            );
        }
        given
    }

    /// Gives the magazine that a list parked last back; how many frames. `at` is the list's index among those of its level;
    /// the sorter is the caller's.
    fn drain_magazine(&self, at: usize, list: &FrameList, parked: &Parked, sorter: &[SortEntry]) -> u64 {
        let order = order_of(at % LISTS);
        let given = list.magazine_frames(order);
        let Some(magazine) = parked.unpark(self.platform(), true) else { return 0 };
        let mut sorting = Sorting::new(sorter);
        // The folio that it stands in goes last.
        let frames = magazine.frames(list.capacity()).chain(core::iter::once(magazine.own().0));
        frames.for_each(|frame| self.store.sort_in(&mut sorting, frame, order));
        self.store.sort_out(&mut sorting);
        self.frames().count(Stat::PcpDrain, given);
        given
    }

    /// Takes a folio from a list's arrays, down to the one that its magazine stands in. The list is the caller's.
    fn pop_arrays(&self, list: &FrameList) -> Option<Frame> {
        if list.len() == 0 && list.other() > Other::Empty {
            list.exchange();
        }
        list.pop().or_else(|| self.pop_last(list)).map(|(frame, _)| frame)
    }

    /// Makes room on a full list: gives folios of its older array back, all of them, or as many as [`VISIT_BLOCKS`] blocks
    /// have. List and sorter are the caller's.
    #[cold]
    #[inline(never)]
    pub(in crate::page_alloc) fn drain_other(&self, own: OwnList<'_>, sorter: &[SortEntry]) {
        own.list.exchange();
        let most = Most { folios: usize::MAX, blocks: VISIT_BLOCKS };
        self.drain_list(own.list, own.number, most, sorter, || own.list.pop().map(|(frame, _)| frame));
    }

    /// Gives folios that `take` takes off a list back to the store; how many frames. List and sorter are the caller's.
    fn drain_list(
        &self,
        list: &FrameList,
        number: usize,
        most: Most,
        sorter: &[SortEntry],
        mut take: impl FnMut() -> Option<Frame>,
    ) -> u64 {
        let (mut sorting, mut taken) = (Sorting::new(sorter), 0);
        while taken < most.folios
            && sorting.visited() < most.blocks
            && let Some(frame) = take()
        {
            self.store.sort_in(&mut sorting, frame, order_of(number));
            taken += 1;
        }
        self.store.sort_out(&mut sorting);
        list.note_flow(taken as i64);
        let given = (taken as u64) << order_of(number).get();
        self.frames().count(Stat::PcpDrain, given);
        given
    }
}

/// How much a drain gives back at most.
struct Most {
    folios: usize,
    /// Blocks that it comes by, one after the other.
    blocks: usize,
}

impl Most {
    const ALL: Self = Self { folios: usize::MAX, blocks: usize::MAX };
}
