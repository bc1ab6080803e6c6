//! Folios go from per-CPU lists back to the store: what overflows, what has been idle, what another CPU needs.
//!
//! # Another CPU's lists
//!
//! Parked magazines are taken one by one under their list's lock; their owner notices nothing. What is left, the arrays of
//! at most [`PCP_CAPACITY`] folios, is had by revoking the leases: one barrier on the owner's CPU, after which it goes
//! straight to the store until the leases are given back. A CPU that is offline is drained in the same way, and needs no
//! barrier.

use core::sync::atomic::Ordering;

use super::PageAllocator;
use super::init::ListGuard;
use super::list::FrameList;
use super::magazine::Parked;
use super::pcp::{CpuLists, LISTS, Level, order_of};
use super::placement::ZoneOrder;
use super::sorter::{SortEntry, Sorting};
use super::turn::Turn;
use crate::addr::{Frame, Order};
use crate::cpu::{CpuId, CpuSet};
use crate::limits::{PCP_AGE_MAGAZINES, PCP_CAPACITY, SCRAPE_FRAMES};
use crate::platform::Platform;
use crate::stats::Stat;
use crate::sync::{Pinned, SpinLock};

impl<P: Platform> PageAllocator<'_, P> {
    /// Gives what this CPU keeps on its lists back to the store, and makes spare blocks whole. Not from an interrupt.
    pub fn drain_local(&self) {
        let cpu = Pinned::new(self.platform).cpu();
        self.drain_cpu(cpu);
        self.merge_all_spares();
    }

    /// Gives what every CPU keeps on its lists back to the store, and makes spare blocks whole. Not from an interrupt.
    pub fn drain_all(&self) {
        (0..self.cpus.len()).for_each(|cpu| self.drain_cpu(CpuId(cpu as u32)));
        self.merge_all_spares();
    }

    /// Gives what one CPU keeps on its lists back to the store, whichever CPU calls: what a CPU that has gone offline
    /// left, or what somebody else needs more. A CPU that is online is made to execute one barrier. Not from an interrupt.
    pub fn drain_cpu(&self, cpu: CpuId) {
        let Some(lists) = self.cpus.get(cpu.index()) else { return };
        let pinned = Pinned::new(self.platform);
        // What is parked goes first, while the owner goes on as before.
        self.with_sorter(pinned.cpu(), |sorter| self.drain_all_parked(&lists.levels[0], sorter));
        let _revoker = lists.drain.lock(self.platform);
        lists.levels.iter().for_each(|level| {
            level.lease.revoke();
            level.set_open(false);
        });
        if cpu != pinned.cpu() && self.platform.online_cpus().contains(cpu) {
            let mut target = CpuSet::EMPTY;
            target.insert(cpu);
            self.platform.fence_cpus(&target);
        }
        lists.levels.iter().for_each(|level| level.lease.wait_left(self.platform));
        for level in &lists.levels {
            self.drain_level(level, &lists.sorter);
        }
        lists.levels.iter().for_each(|level| {
            level.set_open(self.guard == ListGuard::Reentry);
            level.lease.give_back();
        });
        self.free_deferred(lists);
    }

    /// Lets lists shrink that were not refilled of late: call it from time to time (Linux: `decay_pcp_high`, every
    /// second or so), on any CPU, not from an interrupt. Each call lowers what each list may park by an eighth, and gives
    /// at most [`PCP_AGE_MAGAZINES`] magazines of each list back; no CPU is disturbed. How many frames went back.
    pub fn age_lists(&self) -> u64 {
        let pinned = Pinned::new(self.platform);
        let age = |parked: &SpinLock<Parked>| {
            let mut parked = parked.lock(self.platform);
            parked.high -= parked.high.div_ceil(8);
            parked.count.saturating_sub(parked.high).min(PCP_AGE_MAGAZINES)
        };
        self.with_sorter(pinned.cpu(), |sorter| {
            let parked = self.cpus.iter().flat_map(|lists| lists.levels[0].all_parked());
            parked.map(|(at, parked)| self.drain_parked(parked, at % LISTS, age(parked), sorter)).sum()
        })
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

    pub(super) fn merge_all_spares(&self) -> usize {
        self.zones.iter().map(|zone| self.merge_spares(zone)).sum()
    }

    /// Gives up to [`SCRAPE_FRAMES`] frames of this CPU's lists back, and makes spare blocks whole; when
    /// there are none, what interrupts left on lists of their own. How many frames, folios and blocks.
    pub(super) fn scrape(&self, turn: &Turn<'_>) -> u64 {
        let merged = self.merge_all_spares() as u64;
        let Some(level) = turn.level() else { return merged };
        let mut scraped = 0;
        for (at, list) in level.indexed() {
            let order = order_of(at % LISTS);
            if list.len() == 0
                && let Some(parked) = level.parked(at)
            {
                let count = self.unpark(list, &mut parked.lock(self.platform));
                self.zones[at / LISTS].add_parked(-((count as i64) << order.get()));
            }
            let room = (SCRAPE_FRAMES - scraped) >> order.get();
            let count = list.len().min(room.max(1) as usize);
            if count > 0 {
                self.drain_oldest(list, at % LISTS, count, &turn.lists.sorter);
                scraped += (count as u64) << order.get();
            }
            if scraped >= SCRAPE_FRAMES {
                break;
            }
        }
        if scraped == 0 {
            scraped = self.drain_nested(turn.lists);
        }
        scraped + merged
    }

    /// Gives back what interrupts left on the lists of the further levels, where nobody is inside; how many folios. On the
    /// CPU itself only.
    pub(super) fn drain_nested(&self, lists: &CpuLists) -> u64 {
        let mut given = 0;
        for level in lists.levels[1..].iter().filter(|level| level.lease.enter_guarded()) {
            given += level.indexed().map(|(_, list)| list.len() as u64).sum::<u64>();
            self.drain_level(level, &[]);
            level.lease.leave();
        }
        given
    }

    /// Gives everything on a level's lists back. The level and the sorter are the caller's.
    fn drain_level(&self, level: &Level, sorter: &[SortEntry]) {
        self.drain_all_parked(level, sorter);
        for (at, list) in level.indexed().filter(|(_, list)| list.len() > 0) {
            self.drain_oldest(list, at % LISTS, list.len(), sorter);
            list.batch.store(4, Ordering::Relaxed);
        }
    }

    /// Gives everything that a level has parked back, a magazine at a time. The sorter is the caller's.
    fn drain_all_parked(&self, level: &Level, sorter: &[SortEntry]) {
        level.all_parked().for_each(|(at, parked)| {
            self.drain_parked(parked, at % LISTS, u32::MAX, sorter);
        });
    }

    /// Whether any other CPU keeps folios that these zones could use.
    pub(super) fn others_hoard(&self, zones: ZoneOrder<'_>, cpu: CpuId) -> bool {
        let hoards = |lists: &CpuLists| {
            let frames = |&zone: &u8| -> u64 {
                lists.levels.iter().map(|level| level.frames_of_zone(self.platform, zone.into())).sum()
            };
            zones.iter().map(frames).sum::<u64>() + lists.deferred_frames.load(Ordering::Relaxed) > 0
        };
        self.cpus.iter().enumerate().any(|(other, lists)| other != cpu.index() && hoards(lists))
    }

    /// Takes what every other CPU hoards.
    #[cold]
    pub(super) fn drain_others(&self, cpu: CpuId) {
        (0..self.cpus.len())
            .filter(|&other| other != cpu.index())
            .for_each(|other| self.drain_cpu(CpuId(other as u32)));
        self.merge_all_spares();
    }

    /// Gives up to `most` parked magazines back, the ones parked last first; how many frames. `sorter` is the caller's.
    fn drain_parked(&self, parked: &SpinLock<Parked>, number: usize, most: u32, sorter: &[SortEntry]) -> u64 {
        if most == 0 || parked.lock(self.platform).count == 0 {
            return 0;
        }
        let order = order_of(number);
        let mut given = 0;
        let mut frames = [Frame(0); PCP_CAPACITY / 2];
        for _ in 0..most {
            let count = self.take_magazine(&mut parked.lock(self.platform), &mut frames);
            if count == 0 {
                break;
            }
            let zone = self.memmap.block(frames[0].block()).zone();
            self.zones[zone].add_parked(-((count as i64) << order.get()));
            self.put_frames(&frames[..count], order, sorter);
            given += (count as u64) << order.get();
        }
        self.count(Stat::PcpDrain, given);
        given
    }

    /// Gives the oldest folios of a list's array back; the recent ones are warm and stay. List and `sorter` are the
    /// caller's.
    #[cold]
    #[inline(never)]
    pub(super) fn drain_oldest(&self, list: &FrameList, number: usize, count: usize, sorter: &[SortEntry]) {
        let (order, len) = (order_of(number), list.len());
        let mut frames = [Frame(0); PCP_CAPACITY / 2];
        let mut at = 0;
        while at < count {
            let batch = (count - at).min(frames.len());
            for (slot, frame) in list.slots()[at..at + batch].iter().zip(&mut frames) {
                *frame = slot.frame();
            }
            self.put_frames(&frames[..batch], order, sorter);
            at += batch;
        }
        super::magazine::copy(list.slots(), &list.slots()[count..len]);
        list.set_len(len - count);
        self.count(Stat::PcpDrain, (count as u64) << order.get());
    }

    /// Gives folios that were on a list to the store: one hold of a block's lock for all that are its.
    fn put_frames(&self, frames: &[Frame], order: Order, sorter: &[SortEntry]) {
        if order == Order::BLOCK {
            return frames.iter().for_each(|frame| self.put_whole(frame.block(), order));
        }
        if sorter.is_empty() {
            return frames.iter().for_each(|&frame| self.put_one(frame, order));
        }
        let mut sorting = Sorting::new(sorter);
        frames.iter().for_each(|&frame| self.sort_in(&mut sorting, frame, order));
        self.sort_out(&mut sorting);
    }
}
