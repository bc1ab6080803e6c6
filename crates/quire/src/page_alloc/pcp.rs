//! Per-CPU lists of free folios.
//!
//! A list is an array of frame numbers that only its own CPU touches, pinned, under a [`Lease`]: no locked operation, no
//! interrupt switching. Nobody on the CPU ever waits for the lease. Code that finds it taken has interrupted the list's
//! user, and uses the lists of the next *level*: every CPU has [`LEVELS`] sets, as many as contexts can stand on top of
//! each other, so that interrupts are served from a list at any moment. The usual interrupt, which arrives while nobody
//! is inside, uses the first level as everybody does, whose folios are warm.
//!
//! What overflows the array is *parked* ([`super::magazine`]): whole magazines that other CPUs may take under a small
//! lock, without disturbing the owner. The array itself can be had by revoking the lease ([`super::drain`]).
//!
//! A folio on a list has the state [`FrameState::FREE`], so that freeing it twice is found. That byte, and the array, are
//! all that the common path writes besides two counters; no descriptor is touched.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use super::PageAllocator;
use super::gfp::{Mobility, ZoneKind};
use super::layout::KINDS;
use super::list::{FrameList, Slot, add_own};
use super::magazine::Parked;
use super::sorter::SortEntry;
use crate::addr::{Frame, FrameRange, Order};
use crate::cpu::CpuId;
use crate::limits::{BLOCK_FRAMES, MAGAZINE_FRAMES, MAX_NODES, NESTED_SLOTS, SORTER_BLOCKS};
use crate::memmap::{Block, BlockState, BootRef, BootSlice, FrameState, LIST_BYTES};
use crate::platform::FramePlatform;
use crate::rank::Rank;
use crate::sync::{Lease, SpinLock, Stack};

/// Lists for each zone: orders 0 to 3 have one for each mobility group, order 9 has one; the rest is padding, so that a
/// zone's lists are found by a shift.
pub(super) const LISTS: usize = 16;
pub(super) const HUGE: usize = 4 * 3;
/// Contexts that can stand on top of each other on one CPU: task, soft interrupt, hard interrupt.
pub(super) const LEVELS: usize = 3;

/// The list that serves an order, if any does.
#[inline(always)]
pub(super) fn list_of(order: Order, mobility: Mobility) -> Option<usize> {
    match order.get() {
        small @ 0..=3 => Some(usize::from(small) * 3 + mobility as usize),
        9 => Some(HUGE),
        _ => None,
    }
}

/// The order that a list serves.
#[inline]
pub(super) fn order_of(list: usize) -> Order {
    let order = if list >= HUGE { Order::BLOCK.get() } else { (list / 3) as u8 };
    Order::new(order).unwrap_or(Order::FRAME)
}

/// Slots, a power of two, for a list of the first level in a zone with this many frames, on a machine with this many CPUs:
/// the arrays of all CPUs together keep at most about an eighth of the zone.
fn capacity_of(list: usize, zone_frames: u64, cpus: usize) -> usize {
    let share = zone_frames / (8 * cpus as u64 * LISTS as u64);
    let slots = (share >> order_of(list).get()) as usize;
    if list > HUGE || slots < 4 {
        return 0;
    }
    1 << slots.min(MAGAZINE_FRAMES >> order_of(list).get().min(5)).ilog2()
}

/// Slots for a list of a further level.
fn nested_capacity_of(list: usize, zone_frames: u64, cpus: usize) -> usize {
    let slots = (capacity_of(list, zone_frames, cpus) / 4).min(NESTED_SLOTS >> order_of(list).get().min(3));
    if slots < 2 { 0 } else { slots }
}

/// The lists of one zone. Entries that no order and group has are padding.
pub(super) type ZoneLists = [FrameList; LISTS];

/// The lists of one level of one CPU.
#[repr(align(128))]
pub(super) struct Level {
    pub(super) lease: Lease,
    /// The lists of the zone that serves this CPU first, for each kind.
    first: [BootRef<ZoneLists>; 3],
    /// The lists of each zone.
    lists: BootSlice<ZoneLists>,
    /// What each of these lists has parked. First level only.
    parked: BootSlice<Parked>,
}

impl Level {
    /// Opens the lists to the common path, or shuts them.
    pub(super) fn set_open(&self, open: bool) {
        self.lists.as_slice().as_flattened().iter().for_each(|list| list.set_open(open));
    }

    /// What the list with this index among all of the level has parked.
    pub(super) fn parked(&self, at: usize) -> Option<&Parked> {
        self.parked.as_slice().get(at)
    }

    /// The list of a zone with this number.
    #[inline(always)]
    pub(super) fn list(&self, zone: usize, number: usize) -> &FrameList {
        &self.lists[zone][number]
    }

    /// The list that a record of a folio in use names, by where it begins, in bytes.
    #[inline(always)]
    pub(super) fn list_at(&self, bytes: usize) -> &FrameList {
        debug_assert!(bytes < self.lists.len() * LISTS * LIST_BYTES);
        // SAFETY: G5: a record that says a folio is in use names a zone, and `bytes` a list of it.
        unsafe { &*self.lists.as_slice().as_ptr().cast::<FrameList>().byte_add(bytes) }
    }

    /// The list of the zone that serves requests for a kind first.
    #[inline(always)]
    pub(super) fn first_list(&self, kind: ZoneKind, number: usize) -> &FrameList {
        &self.first[kind as usize][number]
    }

    /// Every list that can hold anything, with its index.
    pub(super) fn indexed(&self) -> impl Iterator<Item = (usize, &FrameList)> {
        self.lists.as_slice().as_flattened().iter().enumerate().filter(|(_, list)| list.capacity() > 0)
    }

    /// What its lists have parked, with their indices.
    pub(super) fn all_parked(&self) -> impl Iterator<Item = (usize, &FrameList, &Parked)> {
        self.indexed().filter_map(|(at, list)| Some((at, list, self.parked(at)?)))
    }

    /// Frames on the lists of one zone, parked ones included.
    pub(super) fn frames_of_zone(&self, zone: usize) -> u64 {
        let of_zone = self.indexed().filter(|(at, _)| at / LISTS == zone);
        let frames = |(at, list): (usize, &FrameList)| {
            let parked = self.parked(at).map_or(0, |parked| parked.count() as usize);
            ((list.cached() + parked * list.magazine_folios()) as u64) << order_of(at % LISTS).get()
        };
        of_zone.map(frames).sum()
    }
}

/// All that a CPU keeps for itself.
pub(super) struct CpuLists {
    pub(super) levels: [Level; LEVELS],
    /// Folios freed where nothing else could be done; linked through their descriptors.
    pub(super) deferred: Stack,
    /// Frames on the deferred stack.
    pub(super) deferred_frames: AtomicU64,
    /// The right to revoke this CPU's leases.
    pub(super) drain: SpinLock<()>,
    /// For each mobility group, the block that a folio of a middle order came from last, plus one. A hint.
    pub(super) last_block: [AtomicU32; 3],
    /// Where this CPU sorts folios by block. Belongs to the first level's lease.
    pub(super) sorter: BootSlice<SortEntry>,
}

/// Where the lists of one level find their slots: `take(list, slots)` gives that many.
pub(super) struct ListSizes<'a> {
    /// Frames of each zone.
    pub(super) zone_frames: &'a dyn Fn(usize) -> u64,
    pub(super) zones: usize,
    pub(super) cpus: usize,
}

impl ListSizes<'_> {
    /// Blocks by which each CPU sorts: few where there are few.
    pub(super) fn sorter_blocks(&self) -> usize {
        let blocks: u64 = (0..self.zones).map(|zone| (self.zone_frames)(zone) >> Order::BLOCK.get()).sum();
        (blocks as usize / 16).clamp(1, SORTER_BLOCKS).next_power_of_two()
    }

    /// Slots for list `at` of level `level`, counted over all zones.
    pub(super) fn slots(&self, level: usize, at: usize) -> usize {
        let capacity = if level == 0 { capacity_of } else { nested_capacity_of };
        capacity(at % LISTS, (self.zone_frames)(at / LISTS), self.cpus)
    }
}

impl CpuLists {
    /// `lists[level]` holds the lists of each zone; `first` names the zone that serves this CPU first, by kind. `None` if
    /// there is no such zone.
    pub(super) fn new(
        lists: [BootSlice<ZoneLists>; LEVELS],
        first: [u8; 3],
        parked: BootSlice<Parked>,
        guarded: bool,
        sorter: BootSlice<SortEntry>,
    ) -> Option<Self> {
        let mut levels = [const { None }; LEVELS];
        for (number, level) in levels.iter_mut().enumerate() {
            let lists = lists[number];
            let [Some(dma32), Some(normal), Some(movable)] = first.map(|zone| lists.entry(zone.into()))
            else {
                return None;
            };
            *level = Some(Level {
                lease: Lease::new(guarded),
                first: [dma32, normal, movable],
                lists,
                parked: if number == 0 { parked } else { BootSlice::empty() },
            });
        }
        let [Some(task), Some(soft), Some(hard)] = levels else { return None };
        Some(Self {
            levels: [task, soft, hard],
            deferred: Stack::new(),
            deferred_frames: AtomicU64::new(0),
            drain: SpinLock::new(Rank::ListDrain, ()),
            last_block: [const { AtomicU32::new(0) }; 3],
            sorter,
        })
    }

    /// A list over these slots.
    pub(super) fn make_list(slots: BootSlice<Slot>, guarded: bool) -> FrameList {
        FrameList::new(slots, guarded)
    }
}

impl<P: FramePlatform> PageAllocator<'_, P> {
    /// What a CPU keeps for itself.
    #[inline(always)]
    pub(super) fn lists_of(&self, cpu: CpuId) -> &CpuLists {
        debug_assert!(cpu.index() < self.cpus.len());
        // SAFETY: G4: a platform names its CPUs by numbers below `cpu_count`, which is how many entries there are.
        unsafe { self.cpus.as_slice().get_unchecked(cpu.index()) }
    }

    /// The common case of an allocation, and all that is inlined into callers: the list of the CPU's first zone has a
    /// folio. `None` means that the long way must be gone. The folio's state is what it was on the list.
    #[inline(always)]
    pub(super) fn take_listed(
        &self,
        cpu: CpuId,
        number: usize,
        kind: ZoneKind,
    ) -> Option<(Frame, &AtomicU8)> {
        let level = &self.lists_of(cpu).levels[0];
        let list = level.first_list(kind, number);
        if !level.lease.enter_open() {
            return None;
        }
        let popped = list.pop_open();
        if popped.is_some() {
            add_own(&list.allocated, 1);
        }
        level.lease.leave();
        popped
    }

    /// The common case of a free: a folio that was never mapped or held, and room on its list. `false` means that the
    /// long way must be gone, which also finds out what is wrong.
    #[inline(always)]
    pub(super) fn put_untouched(&self, cpu: CpuId, frame: Frame, order: Order) -> bool {
        let block = self.memmap.get_main(frame.block());
        block.is_some_and(|block| self.put_untouched_of(cpu, block, frame, order))
    }

    /// As [`Self::put_untouched`], for a block whose record is not one of the longest run.
    pub(super) fn put_untouched_far(&self, cpu: CpuId, frame: Frame, order: Order) -> bool {
        let far = self.memmap.get_main(frame.block()).is_none();
        let block = self.memmap.get(frame.block()).filter(|_| far);
        block.is_some_and(|block| self.put_untouched_of(cpu, block, frame, order))
    }

    /// `block` is the record of the frame's block.
    #[inline(always)]
    fn put_untouched_of(&self, cpu: CpuId, block: &Block, frame: Frame, order: Order) -> bool {
        let Some((list_at, state)) = self.list_of_untouched(block, frame, order) else { return false };
        let level = &self.lists_of(cpu).levels[0];
        let list = level.list_at(list_at);
        if !level.lease.enter_open() {
            return false;
        }
        let put = list.push_open(frame, state);
        if put {
            FrameState::FREE.put(state);
            if order == Order::BLOCK {
                block.set_state(BlockState::Listed);
            }
            self.note_freed(FrameRange::new(frame, order.frames()));
        }
        level.lease.leave();
        put
    }

    /// Where the list of a folio that needs no check begins among those of all zones, in bytes, and where its state stands.
    /// `block` is the record of the frame's block.
    #[inline(always)]
    pub(super) fn list_of_untouched<'b>(
        &self,
        block: &'b Block,
        frame: Frame,
        order: Order,
    ) -> Option<(usize, &'b AtomicU8)> {
        let (list_at, state) = match order.get() {
            small @ 0..=3 => {
                // SAFETY: M2: the record is that of the frame's block.
                let state = unsafe { block.state_cell(frame) }?;
                (block.lists_at() + usize::from(small) * (3 * LIST_BYTES), state)
            }
            9 if frame.index_in_block() == 0 => {
                let zone_at = block.lists_at() & !(size_of::<ZoneLists>() - 1);
                (zone_at + HUGE * LIST_BYTES, block.folio_state_cell())
            }
            _ => return None,
        };
        (FrameState::of(state) == FrameState::in_use(order)).then_some((list_at, state))
    }

    /// A folio leaves a list for its owner, who wants to know that it is zero or does not. `state` is its own.
    #[inline(always)]
    pub(super) fn mark_in_use(&self, frame: Frame, state: &AtomicU8, order: Order, zeroed: bool) {
        if order == Order::BLOCK
            && let Some(block) = self.memmap.get(frame.block())
        {
            block.set_state(BlockState::Folio);
        }
        FrameState::in_use(order).with_zeroes(zeroed).put(state);
    }

    /// A folio comes to a list, or goes back to the store, known to be zero or not: freeing it again is refused.
    pub(super) fn mark_free(&self, block: &Block, frame: Frame, order: Order, zeroed: bool) {
        FrameState::FREE.with_zeroes(zeroed).put(self.state_cell(block, frame));
        if order >= Order::BLOCK {
            block.set_state(BlockState::Listed);
        }
    }

    /// Where the state of a folio stands.
    #[inline]
    pub(super) fn state_cell<'b>(&self, block: &'b Block, frame: Frame) -> &'b AtomicU8 {
        match block.area() {
            Some(area) => area.state_cell(frame.index_in_block()),
            None => block.folio_state_cell(),
        }
    }
}

const _: () = assert!(MAGAZINE_FRAMES <= BLOCK_FRAMES);
const _: () = assert!(size_of::<FrameList>() == LIST_BYTES);
const _: () = assert!(MAX_NODES * KINDS * size_of::<ZoneLists>() <= 1 << 16, "a record says it in 16 bits");
