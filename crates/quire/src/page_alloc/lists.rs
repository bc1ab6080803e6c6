//! The long way through a per-CPU list: filling it when it is empty, making room when it is full.

use core::sync::atomic::{AtomicU8, Ordering};

use super::PageAllocator;
use super::gfp::Gfp;
use super::list::{FrameList, add_own};
use super::magazine::Parked;
use super::pcp::{HUGE, LEVELS, order_of};

use super::search::Search;
use super::turn::Turn;
use super::zone::Zone;
use crate::addr::{Frame, FrameRange, Order};
use crate::error::FreeError;
use crate::limits::{NESTED_BATCH, PCP_BATCH};
use crate::platform::Platform;
use crate::stats::Stat;
use crate::sync::{SpinGuard, SpinLock};

impl<P: Platform> PageAllocator<'_, P> {
    /// Takes a folio from one of the turn's lists, filling it first if it is empty.
    pub(super) fn list_take(&self, turn: &Turn<'_>, zone: usize, number: usize, gfp: Gfp) -> Option<Frame> {
        let list = turn.level()?.list(zone, number);
        let order = order_of(number);
        let popped = list.pop().or_else(|| self.refill(turn, list, &self.zones[zone], number, gfp));
        let (frame, state) = popped?;
        self.mark_in_use(frame, state, order);
        add_own(&list.allocated, 1);
        Some(frame)
    }

    /// Fills an empty list, from what it parked or from the zone, within its mark, and takes one folio.
    #[cold]
    #[inline(never)]
    fn refill<'l>(
        &self,
        turn: &Turn<'_>,
        list: &'l FrameList,
        zone: &Zone,
        number: usize,
        gfp: Gfp,
    ) -> Option<(Frame, &'l AtomicU8)> {
        let order = order_of(number);
        let parked = turn.parked(zone, number);
        if let Some(mut parked) = parked.and_then(|parked| self.lock_parked(turn, parked))
            && parked.count > 0
        {
            let count = self.unpark(list, &mut parked);
            zone.add_parked(-((count as i64) << order.get()));
            return list.pop();
        }
        let most = if parked.is_some() { PCP_BATCH } else { NESTED_BATCH };
        let batch = (list.batch.load(Ordering::Relaxed) as usize).min(list.magazine()).min(most);
        list.batch.store((batch as u32 * 2).clamp(4, PCP_BATCH as u32), Ordering::Relaxed);
        let allowed = zone.allowance(gfp.urgency, gfp.zone) >> order.get();
        let wanted = batch.min(allowed as usize);
        let mut frames = [Frame(0); PCP_BATCH];
        let got = self.in_store(|| self.fetch(turn, zone, number, gfp, &mut frames[..wanted]));
        self.count(Stat::PcpRefill, 1);
        // The lowest address comes out first, so that neighbours in time are neighbours in memory.
        frames[..got].iter().rev().for_each(|&frame| {
            list.push(frame, self.state_cell(self.memmap.block(frame.block()), frame));
        });
        list.note_flow(-(got as i64));
        if let Some(parked) = parked {
            self.note_refill(turn, parked, zone, got);
        }
        list.pop()
    }

    /// Takes folios for a list from the zone's store; how many.
    fn fetch(&self, turn: &Turn<'_>, zone: &Zone, number: usize, gfp: Gfp, out: &mut [Frame]) -> usize {
        let order = order_of(number);
        if number != HUGE {
            let search = Search { listed: true, ..Search::new(zone, turn.cpu, gfp, order, turn.wait) };
            return self.store_take(zone, search, out);
        }
        let mut got = 0;
        for slot in out {
            let Some(frame) = self.take_whole(zone, order, turn.wait) else { break };
            self.mark_free(self.memmap.block(frame.block()), frame, order);
            *slot = frame;
            got += 1;
        }
        got
    }

    /// A list that had to ask the store may park more from now on, unless the zone is short of memory.
    fn note_refill(&self, turn: &Turn<'_>, parked: &SpinLock<Parked>, zone: &Zone, got: usize) {
        if let Some(mut parked) = self.lock_parked(turn, parked) {
            let short = zone.free_frames() < zone.marks.high;
            parked.high = if short { 0 } else { parked.high + u32::from(got > 0) };
        }
    }

    /// A list's parked magazines, unless they are locked and cannot be waited for.
    fn lock_parked<'a>(
        &'a self,
        turn: &Turn<'_>,
        parked: &'a SpinLock<Parked>,
    ) -> Option<SpinGuard<'a, Parked, P>> {
        if turn.wait { Some(parked.lock(self.platform)) } else { parked.try_lock(self.platform) }
    }

    /// Puts a folio onto its list. `Ok(false)`: no list takes it, free it in another way.
    ///
    /// # Errors
    /// [`FreeError`]; nothing has changed then.
    pub(super) fn list_put(&self, turn: &Turn<'_>, frame: Frame, order: Order) -> Result<bool, FreeError> {
        let block = self.memmap.get(frame.block()).ok_or(FreeError::NotMemory)?;
        let Some(level) = turn.level() else { return Ok(false) };
        let number = match order.get() {
            small @ 0..=3 => {
                self.check_listable(block, frame, order)?;
                usize::from(small) * 3 + usize::from(block.mobility())
            }
            9 => {
                self.check_whole(block, frame, order)?;
                HUGE
            }
            _ => return Ok(false),
        };
        let list = level.list(block.zone(), number);
        // Lanes of counts are given back before a block waits on a list.
        let unlisted = list.capacity() == 0 || number == HUGE && block.lanes_at().is_some();
        if unlisted || list.len() == list.capacity() && !self.make_room(turn, list, number, block.zone()) {
            return Ok(false);
        }
        self.note_freed(FrameRange::folio(frame, order));
        self.mark_free(block, frame, order);
        list.push(frame, self.state_cell(block, frame));
        Ok(true)
    }

    /// Parks the older half of a full list or gives it back; whether there is room now.
    #[cold]
    fn make_room(&self, turn: &Turn<'_>, list: &FrameList, number: usize, zone: usize) -> bool {
        let (zone, frames) = (&self.zones[zone], (list.magazine() as u64) << order_of(number).get());
        let Some(parked) = turn.parked(zone, number) else { return false };
        if let Some(mut parked) = self.lock_parked(turn, parked)
            // What an interrupt frees is parked beyond the mark, as it cannot be given back from there.
            && (parked.count < parked.high || !turn.wait)
            && zone.may_park(frames)
        {
            self.park_oldest(list, &mut parked);
            zone.add_parked(frames as i64);
            return true;
        }
        if turn.wait {
            self.in_store(|| self.drain_oldest(list, number, list.magazine(), &turn.lists.sorter));
        }
        turn.wait
    }
}

const _: () = assert!(LEVELS > 1 && NESTED_BATCH <= PCP_BATCH);
