//! Gives folios of per-CPU lists back to the store: overflow, idle ones, and those that another CPU needs.
//!
//! # Another CPU's lists
//!
//! Parked magazines are taken one by one under their list's lock, without disturbing its owner. For the rest,
//! two arrays of at most [`PCP_CAPACITY`](crate::limits::PCP_CAPACITY) folios, the leases are revoked: the
//! owner's CPU, if online, executes one barrier, and then uses the store until the leases are given back.

use core::sync::atomic::Ordering;

use crate::addr::Frame;
use crate::cpu::{CpuId, CpuSet};
use crate::limits::{DRAIN_MAGAZINES, PCP_AGE_MAGAZINES, SCRAPE_FRAMES, VISIT_BLOCKS};
use crate::memmap::LISTS;
use crate::page_alloc::pcp::Lists;
use crate::page_alloc::pcp::level::{CpuLists, Level, order_of};
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
    /// Gives this CPU's listed folios back to the store, and makes spare blocks whole. Not from an interrupt.
    pub fn drain_local(&self) {
        let cpu = Pinned::new(self.platform()).cpu();
        while self.drain_cpu(cpu).more {}
        self.store.merge_all_spares();
    }

    /// Gives all listed folios back to the store, and makes spare blocks whole. Not from an interrupt.
    pub fn drain_all(&self) {
        (0..self.cpus.len()).for_each(|cpu| while self.drain_cpu(CpuId(cpu as u32)).more {});
        self.store.merge_all_spares();
    }

    /// Gives one CPU's listed folios back to the store; any CPU may call, also when that one is offline. One
    /// call gives at most [`DRAIN_MAGAZINES`] parked magazines back, while the owner continues. The call that
    /// finds no more empties the arrays, for which an online CPU executes one barrier. Not from an interrupt.
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

    /// Revokes a CPU's leases and empties its arrays; returns how many frames.
    fn drain_arrays(&self, own: CpuId, cpu: CpuId, lists: &CpuLists) -> u64 {
        let _revoker = lists.drain.lock(self.platform());
        lists.levels.iter().for_each(|level| level.lease.revoke());
        lists.levels[0].shut();
        if cpu != own && self.platform().online_cpus().contains(cpu) {
            let mut target = CpuSet::EMPTY;
            target.insert(cpu);
            self.platform().fence_cpus(&target);
        }
        lists.levels.iter().for_each(|level| level.lease.wait_left(self.platform()));
        let frames = lists.levels.iter().map(|level| self.drain_level(level, &lists.sorter)).sum();
        // The owner may have parked magazines before its lease was revoked.
        if !lists.levels[0].all_parked().any(|(.., parked)| parked.count() > 0) {
            lists.empty.store(true, Ordering::Relaxed);
        }
        lists.levels.iter().for_each(|level| level.lease.give_back());
        self.free_deferred(lists);
        frames
    }

    /// Shrinks lists that were not refilled of late; to be called about every second (Linux:
    /// `decay_pcp_high`), on any CPU, by a task that holds no lock and is not pinned: it invokes a reschedule
    /// point after each CPU's lists. Each call lowers what each list may park by an eighth, and frees up to
    /// [`PCP_AGE_MAGAZINES`] magazines of each, without disturbing a CPU; returns how many frames.
    pub fn age_lists(&self) -> u64 {
        let age = |parked: &Parked| parked.age(self.platform()).min(PCP_AGE_MAGAZINES);
        let of_cpu = |lists: &CpuLists| -> u64 {
            let pinned = Pinned::new(self.platform());
            let drain = |one| self.drain_chains(pinned.cpu(), core::iter::once(one), age(one.2));
            let given = lists.levels[0].all_parked().map(drain).sum();
            drop(pinned);
            self.platform().reschedule_point();
            given
        };
        self.cpus.iter().map(of_cpu).sum()
    }

    /// Lends the running CPU's sorter, or an empty one if its lists are in use.
    fn with_sorter<R>(&self, cpu: CpuId, sort: impl FnOnce(&[SortEntry]) -> R) -> R {
        let own = &self.cpus[cpu.index()];
        if !own.levels[0].lease.enter_guarded() {
            return sort(&[]);
        }
        let result = sort(&own.sorter);
        own.levels[0].lease.release();
        result
    }

    /// Makes spare blocks whole, and unless the lists rest gives up to [`SCRAPE_FRAMES`] frames of this CPU's back;
    /// without such frames, it drains the interrupts' lists. Returns how many frames and blocks.
    pub(in crate::page_alloc) fn scrape(&self, access: &ListAccess<'_>, rests: bool) -> u64 {
        let merged = self.store.merge_all_spares() as u64;
        let skipped = rests || access.lists.known_empty();
        let Some(level) = access.level().filter(|_| !skipped) else { return merged };
        let mut scraped = 0;
        for (at, list) in level.filled() {
            let Some(own) = self.own_list(access, at) else { break };
            let room = (SCRAPE_FRAMES - scraped) >> order_of(own.number).get();
            let take = || self.pop_loading(own).or_else(|| self.pop_last(list)).map(|(frame, _)| frame);
            let most = Most { folios: room.max(1) as usize, blocks: VISIT_BLOCKS };
            scraped += self.drain_list::<true>(list, own.number, most, &access.lists.sorter, take);
            if scraped >= SCRAPE_FRAMES {
                break;
            }
        }
        if scraped == 0 {
            scraped = self.drain_nested(access.lists);
            if scraped == 0 && access.level == Some(0) {
                access.lists.note_empty();
            }
        }
        scraped + merged
    }

    /// Drains those of this CPU's further levels that no code is using; returns how many frames.
    pub(in crate::page_alloc) fn drain_nested(&self, lists: &CpuLists) -> u64 {
        let mut given = 0;
        for level in lists.levels[1..].iter().filter(|level| level.lease.enter_guarded()) {
            given += self.drain_level(level, &[]);
            level.lease.release();
        }
        given
    }

    /// Empties a level's arrays; returns how many frames. The level and the sorter are the caller's.
    fn drain_level(&self, level: &Level, sorter: &[SortEntry]) -> u64 {
        let drain = |(at, list): (usize, &FrameList)| {
            list.batch.store(4, Ordering::Relaxed);
            self.drain_list::<true>(list, at % LISTS, Most::ALL, sorter, || self.pop_arrays(list))
        };
        level.filled().map(drain).sum()
    }

    /// Whether any other CPU's lists have folios of these zones.
    pub(in crate::page_alloc) fn others_hold_frames(&self, zones: ZoneOrder<'_>, cpu: CpuId) -> bool {
        let holds = |lists: &CpuLists| {
            let frames = |&zone: &u8| -> u64 {
                lists.levels.iter().map(|level| level.frames_of_zone(zone.into())).sum()
            };
            lists.deferred_frames.load(Ordering::Relaxed) > 0
                || !lists.known_empty() && zones.iter().any(|zone| frames(zone) > 0)
        };
        self.cpus.iter().enumerate().any(|(other, lists)| other != cpu.index() && holds(lists))
    }

    /// Drains some of every other CPU's lists; returns whether there is more.
    #[cold]
    pub(in crate::page_alloc) fn drain_others(&self, cpu: CpuId) -> bool {
        let others = (0..self.cpus.len()).filter(|&other| other != cpu.index());
        let more = others.fold(false, |more, other| self.drain_cpu(CpuId(other as u32)).more | more);
        self.store.merge_all_spares();
        self.platform().event(Event::ListsDrained);
        more
    }

    /// Gives up to `most` parked magazines of some lists back, last parked first; returns how many frames.
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
            let zone = &self.store.zones[at / LISTS];
            parked.unbook(self.platform(), zone, list.magazine_frames(order_of(at % LISTS)));
        }
        given
    }

    /// Gives the last magazine of list `at` back, through the caller's sorter; returns how many frames.
    fn drain_magazine(&self, at: usize, list: &FrameList, parked: &Parked, sorter: &[SortEntry]) -> u64 {
        let order = order_of(at % LISTS);
        let given = list.magazine_frames(order);
        let Some(magazine) = parked.unpark(self.platform(), true) else { return 0 };
        let mut sorting = Sorting::new(sorter);
        // The magazine's own folio goes last.
        let frames = magazine.frames(list.capacity()).chain(core::iter::once(magazine.own().0));
        frames.for_each(|frame| self.store.sort_in_marked(&mut sorting, frame, order));
        self.store.sort_out(&mut sorting);
        self.frames().count(Stat::PcpDrain, given);
        given
    }

    /// Pops a folio of a list that is the caller's, at last the one that its magazine stands in.
    fn pop_arrays(&self, list: &FrameList) -> Option<Frame> {
        if list.len() == 0 && list.other() > Other::Empty {
            list.exchange();
        }
        list.pop().or_else(|| self.pop_last(list)).map(|(frame, _)| frame)
    }

    /// Frees the older array of a full list, or as much of it as [`VISIT_BLOCKS`] blocks have.
    #[cold]
    #[inline(never)]
    pub(in crate::page_alloc) fn drain_other(&self, own: OwnList<'_>, sorter: &[SortEntry]) {
        own.list.exchange();
        let most = Most { folios: usize::MAX, blocks: VISIT_BLOCKS };
        let take = || own.list.pop().map(|(frame, _)| frame);
        self.drain_list::<false>(own.list, own.number, most, sorter, take);
    }

    /// Gives folios that `take` pops off the caller's list back to the store; returns how many frames. `MARKED`: those that
    /// are known to be zero stay so.
    fn drain_list<const MARKED: bool>(
        &self,
        list: &FrameList,
        number: usize,
        most: Most,
        sorter: &[SortEntry],
        mut take: impl FnMut() -> Option<Frame>,
    ) -> u64 {
        let (mut sorting, mut taken, order) = (Sorting::new(sorter), 0, order_of(number));
        while taken < most.folios
            && sorting.visited() < most.blocks
            && let Some(frame) = take()
        {
            if MARKED {
                self.store.sort_in_marked(&mut sorting, frame, order);
            } else {
                self.store.sort_in(&mut sorting, frame, order);
            }
            taken += 1;
        }
        self.store.sort_out(&mut sorting);
        list.note_flow(taken as i64);
        let given = (taken as u64) << order.get();
        self.frames().count(Stat::PcpDrain, given);
        given
    }
}

/// Limits of a drain.
struct Most {
    folios: usize,
    /// Visits of blocks.
    blocks: usize,
}

impl Most {
    const ALL: Self = Self { folios: usize::MAX, blocks: usize::MAX };
}
