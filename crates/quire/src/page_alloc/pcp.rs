//! Per-CPU lists of free folios.
//!
//! A list is an array of frame numbers that only its own CPU touches, pinned, under a plain re-entry flag: no locked
//! operation, no interrupt switching. Nobody ever waits for the flag. Code that finds it set has interrupted the list's
//! user on the same CPU: its allocations go to the store without waiting for any lock, and its frees onto the CPU's
//! *deferred* stack, which the CPU's next undisturbed call that goes the long way empties. All fields are atomics used with plain loads
//! and stores; other CPUs read the lengths for the counters.
//!
//! A frame on a list is marked in its descriptor, so that freeing it twice is found; the mark is the only thing that
//! the common path writes outside the list.

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, compiler_fence};

use super::PageAllocator;
use super::gfp::{Gfp, Mobility, ZoneKind};
use super::search::Search;
use crate::addr::{Frame, FrameRange, Order};
use crate::cpu::CpuId;
use crate::error::FreeError;
use crate::limits::{PCP_BATCH, PCP_CAPACITY};
use crate::memmap::{BlockState, BootSlice, Descriptor, DescriptorFlags, FrameMask};
use crate::platform::Platform;
use crate::stats::Stat;

/// Lists for each zone: orders 0 to 3 have one for each mobility group, order 9 has one; the rest is padding, so that a
/// zone's lists are found by a shift.
pub(super) const LISTS: usize = 16;
const HUGE: usize = 4 * 3;

/// The list that serves an order, if any does.
#[inline]
pub(super) fn list_of(order: Order, mobility: Mobility) -> Option<usize> {
    match order.get() {
        small @ 0..=3 => Some(usize::from(small) * 3 + mobility as usize),
        9 => Some(HUGE),
        _ => None,
    }
}

/// The order that a list serves.
pub(super) fn order_of(list: usize) -> Order {
    let order = if list >= HUGE { Order::BLOCK.get() } else { (list / 3) as u8 };
    Order::new(order).unwrap_or(Order::FRAME)
}

/// Slots for each list of a zone with this many frames, on a machine with this many CPUs: all lists of all CPUs
/// together keep at most about an eighth of the zone.
pub(super) fn capacity_of(list: usize, zone_frames: u64, cpus: usize) -> usize {
    let share = zone_frames / (8 * cpus as u64 * LISTS as u64);
    let slots = (share >> order_of(list).get()) as usize;
    if list > HUGE {
        return 0;
    }
    let limit = PCP_CAPACITY >> order_of(list).get().min(5);
    if slots < 4 { 0 } else { slots.min(limit) }
}

/// One list, on a cache line of its own.
#[repr(align(64))]
pub(super) struct FrameList {
    slots: BootSlice<Slot>,
    len: AtomicU32,
    /// Folios to fetch at the next refill: doubles while refills follow each other, as in Linux since 6.7.
    batch: AtomicU32,
    /// Frames that this CPU handed out by the order and group of this list.
    pub(super) allocated: AtomicU64,
    /// Frames that this CPU took back onto the list.
    pub(super) freed: AtomicU64,
}

/// A folio on a list, and where its descriptor stands, so that taking it needs no look into the memory map.
pub(super) struct Slot {
    frame: AtomicU64,
    descriptor: AtomicPtr<Descriptor>,
}

impl Slot {
    fn set(&self, frame: Frame, descriptor: &Descriptor) {
        self.frame.store(frame.0, Ordering::Relaxed);
        self.descriptor.store(core::ptr::from_ref(descriptor).cast_mut(), Ordering::Relaxed);
    }

    #[inline(always)]
    fn frame(&self) -> Frame {
        Frame(self.frame.load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn descriptor(&self) -> &Descriptor {
        // SAFETY: M2: it was set from a reference to the folio's descriptor, and the block stays in small pieces (or a
        // folio of its own) as long as the folio is on the list.
        unsafe { &*self.descriptor.load(Ordering::Relaxed) }
    }

    fn copy(&self, from: &Self) {
        self.set(from.frame(), from.descriptor());
    }
}

impl FrameList {
    pub(super) fn new(slots: BootSlice<Slot>) -> Self {
        let zero = || AtomicU64::new(0);
        Self { slots, len: AtomicU32::new(0), batch: AtomicU32::new(4), allocated: zero(), freed: zero() }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed) as usize
    }

    /// Takes the folio that came last off the list; its descriptor is unmarked.
    #[inline(always)]
    fn pop(&self) -> Option<Frame> {
        let len = self.len().wrapping_sub(1);
        let slot = self.slots.get(len)?;
        self.len.store(len as u32, Ordering::Relaxed);
        slot.descriptor().clear_flags();
        Some(slot.frame())
    }

    /// Puts a folio onto the list and marks its descriptor, if there is room.
    #[inline(always)]
    fn push(&self, frame: Frame, descriptor: &Descriptor) -> bool {
        let len = self.len();
        let Some(slot) = self.slots.get(len) else { return false };
        slot.set(frame, descriptor);
        descriptor.set_flags(DescriptorFlags::LISTED);
        self.len.store(len as u32 + 1, Ordering::Relaxed);
        true
    }

    /// The folios on the list; for `validate`, at rest.
    pub(super) fn frames(&self) -> impl Iterator<Item = Frame> + '_ {
        self.slots[..self.len()].iter().map(Slot::frame)
    }
}

/// Adds to a counter that only the running CPU changes.
#[inline]
pub(super) fn add_own(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
}

/// All that a CPU keeps for itself.
#[repr(align(128))]
pub(super) struct CpuLists {
    /// Somebody on this CPU is using the lists.
    busy: AtomicBool,
    /// The top of the stack of folios freed by nested contexts, plus one; linked through their descriptors.
    pub(super) deferred: AtomicU64,
    /// The lists of the zone that serves this CPU first, for each kind.
    first: [BootSlice<FrameList>; 3],
    /// [`LISTS`] for each zone.
    pub(super) lists: BootSlice<FrameList>,
}

impl CpuLists {
    pub(super) fn new(lists: BootSlice<FrameList>, first: [u8; 3]) -> Self {
        let first = first.map(|zone| lists.part(usize::from(zone) * LISTS, LISTS));
        Self { busy: AtomicBool::new(false), deferred: AtomicU64::new(0), first, lists }
    }

    /// The list of a zone with this number.
    #[inline(always)]
    pub(super) fn list(&self, zone: usize, number: usize) -> &FrameList {
        &self.lists[zone * LISTS + number]
    }

    /// The lists of one zone.
    pub(super) fn of_zone(&self, zone: usize) -> &[FrameList] {
        &self.lists.as_slice()[zone * LISTS..(zone + 1) * LISTS]
    }

    /// Claims the lists for the running code, unless it has interrupted their user.
    #[inline]
    pub(super) fn enter(&self) -> bool {
        let free = !self.busy.load(Ordering::Relaxed);
        if free {
            self.busy.store(true, Ordering::Relaxed);
            // An interrupt on this CPU sees the flag before anything that it guards.
            compiler_fence(Ordering::SeqCst);
        }
        free
    }

    #[inline]
    pub(super) fn leave(&self) {
        compiler_fence(Ordering::SeqCst);
        self.busy.store(false, Ordering::Relaxed);
    }

    /// Whether the running code has interrupted the lists' user.
    #[inline]
    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }
}

impl<P: Platform> PageAllocator<'_, P> {
    /// The common case of an allocation, and all that is inlined into callers: the list of the CPU's first zone has a
    /// folio. `None` means that the long way must be gone.
    #[inline(always)]
    pub(super) fn take_listed(&self, cpu: CpuId, number: usize, kind: ZoneKind) -> Option<Frame> {
        let lists = &self.cpus[cpu.index()];
        let list = lists.first[kind as usize].get(number)?;
        if !lists.enter() {
            return None;
        }
        let frame = list.pop();
        if let Some(frame) = frame {
            if number == HUGE {
                self.memmap.block(frame.block()).set_state(BlockState::Folio);
            }
            add_own(&list.allocated, order_of(number).frames());
        }
        lists.leave();
        frame
    }

    /// The common case of a free: a frame that was never mapped or held, and room on its list. `false` means that the
    /// long way must be gone, which also finds out what is wrong.
    #[inline(always)]
    pub(super) fn put_plain(&self, cpu: CpuId, frame: Frame) -> bool {
        let Some(block) = self.memmap.get(frame.block()) else { return false };
        if !block.plain.contains(frame.index_in_block()) {
            return false;
        }
        let descriptor = self.memmap.descriptor_in(self.platform, block, frame);
        let lists = &self.cpus[cpu.index()];
        if descriptor.has(DescriptorFlags::LISTED) || !lists.enter() {
            return false;
        }
        let list = &lists.lists[block.group()];
        let put = list.push(frame, descriptor);
        if put {
            self.note_freed(FrameRange::new(frame, 1));
            add_own(&list.freed, 1);
        }
        lists.leave();
        put
    }

    /// Takes a folio from a list, filling it first if it is empty. The lists are claimed.
    pub(super) fn list_take(
        &self,
        lists: &CpuLists,
        cpu: CpuId,
        zone: usize,
        list: usize,
        gfp: Gfp,
    ) -> Option<Frame> {
        let own = lists.list(zone, list);
        let frame = match own.pop() {
            Some(frame) => frame,
            None => self.refill(own, cpu, zone, list, gfp)?,
        };
        if list == HUGE {
            self.memmap.block(frame.block()).set_state(BlockState::Folio);
        }
        Some(frame)
    }

    /// Fills an empty list from the zone, within its mark, and takes one folio.
    #[cold]
    #[inline(never)]
    fn refill(&self, list: &FrameList, cpu: CpuId, zone: usize, number: usize, gfp: Gfp) -> Option<Frame> {
        let zone = &self.zones[zone];
        let order = order_of(number);
        let batch = (list.batch.load(Ordering::Relaxed) as usize).min(list.slots.len()).min(PCP_BATCH);
        list.batch.store((batch as u32 * 2).min(PCP_BATCH as u32).max(4), Ordering::Relaxed);
        let allowed = zone.allowance(gfp.urgency, gfp.zone) >> order.get();
        let wanted = batch.min(allowed as usize);
        let mut frames = [Frame(0); PCP_BATCH];
        let got = if number == HUGE {
            let mut taken = 0;
            while let Some(frame) = (taken < wanted).then(|| self.take_whole(zone, order, true)).flatten() {
                frames[taken] = frame;
                taken += 1;
            }
            taken
        } else {
            let search =
                Search { mobility: gfp.mobility, order, home: cpu.index() % zone.shards.len(), wait: true };
            self.store_take(zone, search, &mut frames[..wanted])
        };
        self.count(Stat::PcpRefill, 1);
        // The lowest address comes out first, so that neighbours in time are neighbours in memory.
        for &frame in frames[..got].iter().rev() {
            list.push(frame, self.folio_descriptor(frame));
            if number == HUGE {
                self.memmap.block(frame.block()).set_state(BlockState::Listed);
            }
        }
        list.pop()
    }

    /// Puts a folio onto its list. The lists are claimed. `Ok(false)`: no list serves it, free it into the store.
    #[inline]
    pub(super) fn list_put(&self, lists: &CpuLists, frame: Frame, order: Order) -> Result<bool, FreeError> {
        if order > Order::BLOCK || order.get() > 3 && order < Order::BLOCK {
            return Ok(false);
        }
        let block = self.memmap.get(frame.block()).ok_or(FreeError::NotMemory)?;
        let zone = block.zone();
        if order == Order::BLOCK {
            self.check_whole(block, frame, order)?;
            // Lanes of counts are given back before the block waits on a list.
            if block.lanes_at().is_some() || lists.list(zone, HUGE).slots.is_empty() {
                return Ok(false);
            }
            self.note_freed(FrameRange::folio(frame, order));
            let put = self.push_or_drain(lists.list(zone, HUGE), HUGE, frame, block.folio());
            block.set_state(BlockState::Listed);
            return Ok(put);
        }
        self.check_small(block, frame, order)?;
        let descriptor = self.memmap.descriptor_in(self.platform, block, frame);
        if descriptor.has(DescriptorFlags::LISTED) {
            return Err(FreeError::DoubleFree);
        }
        let number = usize::from(order.get()) * 3 + usize::from(block.mobility());
        let list = lists.list(zone, number);
        if list.slots.is_empty() {
            return Ok(false);
        }
        self.note_freed(FrameRange::folio(frame, order));
        Ok(self.push_or_drain(list, number, frame, descriptor))
    }

    #[inline]
    fn push_or_drain(&self, list: &FrameList, number: usize, frame: Frame, descriptor: &Descriptor) -> bool {
        if list.len() == list.slots.len() {
            self.drain_oldest(list, number, PCP_BATCH.min(list.len().div_ceil(2)));
        }
        list.push(frame, descriptor)
    }

    /// Gives the oldest folios of a list back to the store; the recent ones are warm and stay.
    #[cold]
    #[inline(never)]
    fn drain_oldest(&self, list: &FrameList, number: usize, count: usize) {
        let order = order_of(number);
        let len = list.len();
        let count = count.min(len);
        let mut at = 0;
        while at < count {
            let mut frames = [Frame(0); PCP_BATCH];
            let batch = (count - at).min(PCP_BATCH);
            for (slot, frame) in list.slots[at..at + batch].iter().zip(&mut frames) {
                *frame = slot.frame();
            }
            self.put_listed(&frames[..batch], order);
            at += batch;
        }
        for index in count..len {
            list.slots[index - count].copy(&list.slots[index]);
        }
        list.len.store((len - count) as u32, Ordering::Relaxed);
        self.count(Stat::PcpDrain, (count as u64) << order.get());
    }

    /// Gives folios that were on a list back to the store: one hold of a block's lock for neighbours.
    fn put_listed(&self, frames: &[Frame], order: Order) {
        if order == Order::BLOCK {
            return frames.iter().for_each(|frame| self.put_whole(frame.block(), order));
        }
        let mut at = 0;
        while at < frames.len() {
            let number = frames[at].block();
            let block = self.memmap.block(number);
            let together = frames[at..].iter().take_while(|frame| frame.block() == number).count();
            let mut mask = FrameMask::EMPTY;
            for frame in &frames[at..at + together] {
                self.memmap.descriptor_in(self.platform, block, *frame).clear_flags();
                mask = mask.union(FrameMask::run(frame.index_in_block(), order.frames() as usize));
            }
            block.lock(self.platform);
            self.store_put(number, block, mask);
            at += together;
        }
    }

    /// Gives everything on this CPU's lists back to the store. The lists are claimed.
    pub(super) fn drain_lists(&self, lists: &CpuLists) {
        for (at, list) in lists.lists.iter().enumerate() {
            self.drain_oldest(list, at % LISTS, list.len());
            list.batch.store(4, Ordering::Relaxed);
        }
    }

    /// The descriptor of a folio of any order.
    #[inline]
    pub(super) fn folio_descriptor(&self, frame: Frame) -> &Descriptor {
        let block = self.memmap.block(frame.block());
        if block.state() == BlockState::Folio {
            block.folio()
        } else {
            self.memmap.descriptor_in(self.platform, block, frame)
        }
    }
}
