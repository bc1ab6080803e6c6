//! Per-CPU lists of free folios.
//!
//! A list is an array of frame numbers that only its own CPU touches, pinned, under a [`Lease`]: no locked operation, no
//! interrupt switching. No code on the CPU ever waits for the lease. Code that finds it taken has interrupted the
//! list's user, and uses the lists of the next *level*: every CPU has [`LEVELS`] sets, as many as contexts can stand
//! on top of each other, so that interrupts are served from a list at any moment. The usual interrupt arrives while
//! no code is inside, and uses the first level as tasks do, whose folios are warm.
//!
//! What overflows the array is *parked* ([`super::parked`]): whole magazines that other CPUs may take under a small
//! lock, without disturbing the owner. The array itself can be had by revoking the lease ([`super::drain`]).
//!
//! A folio on a list has the state [`FrameState::FREE`](crate::memmap::FrameState::FREE), so that freeing it twice is found. That byte, and the array, are
//! all that the common path writes besides two counters; no descriptor is touched.

use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::addr::Order;
use crate::limits::{BLOCK_FRAMES, MAGAZINE_FRAMES, MAX_NODES, NESTED_SLOTS, SORTER_BLOCKS};
use crate::memmap::{BootRef, BootSlice, LIST_BYTES};
use crate::page_alloc::frames::CONTEXTS;
use crate::page_alloc::pcp::list::{FrameList, Slot};
use crate::page_alloc::pcp::parked::Parked;
use crate::page_alloc::request::gfp::{KINDS, Mobility, ZoneKind};
use crate::page_alloc::store::sorting::SortEntry;
use crate::rank::Rank;
use crate::sync::{Lease, SpinLock, Stack};

/// Lists for each zone: orders 0 to 3 have one for each mobility group, order 9 has one; the rest is padding, so that a
/// zone's lists are found by a shift.
pub(in crate::page_alloc) const LISTS: usize = 16;
pub(in crate::page_alloc) const HUGE: usize = 4 * 3;
/// Contexts that can stand on top of each other on one CPU: task, soft interrupt, hard interrupt.
pub(in crate::page_alloc) const LEVELS: usize = CONTEXTS;

/// The list that serves an order, if any does.
#[inline(always)]
pub(in crate::page_alloc) fn list_of(order: Order, mobility: Mobility) -> Option<usize> {
    match order.get() {
        small @ 0..=3 => Some(usize::from(small) * 3 + mobility as usize),
        9 => Some(HUGE),
        _ => None,
    }
}

/// The order that a list serves.
#[inline]
pub(in crate::page_alloc) fn order_of(list: usize) -> Order {
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
pub(in crate::page_alloc) type ZoneLists = [FrameList; LISTS];

/// The lists of one level of one CPU.
#[repr(align(128))]
pub(in crate::page_alloc) struct Level {
    pub(in crate::page_alloc) lease: Lease,
    /// The lists of the zone that serves this CPU first, for each kind.
    first: [BootRef<ZoneLists>; 3],
    /// The lists of each zone.
    lists: BootSlice<ZoneLists>,
    /// What each of these lists has parked. First level only.
    parked: BootSlice<Parked>,
}

impl Level {
    /// Opens the lists to the common path, or shuts them.
    pub(in crate::page_alloc) fn set_open(&self, open: bool) {
        self.lists.as_slice().as_flattened().iter().for_each(|list| list.set_open(open));
    }

    /// What the list with this index among all of the level has parked.
    pub(in crate::page_alloc) fn parked(&self, at: usize) -> Option<&Parked> {
        self.parked.as_slice().get(at)
    }

    /// The list of a zone with this number.
    #[inline(always)]
    pub(in crate::page_alloc) fn list(&self, zone: usize, number: usize) -> &FrameList {
        &self.lists[zone][number]
    }

    /// The list that a record of a folio in use names, by where it begins, in bytes.
    #[inline(always)]
    pub(in crate::page_alloc) fn list_at(&self, bytes: usize) -> &FrameList {
        debug_assert!(bytes < self.lists.len() * LISTS * LIST_BYTES);
        // SAFETY: G5: a record that says a folio is in use names a zone, and `bytes` a list of it.
        unsafe { &*self.lists.as_slice().as_ptr().cast::<FrameList>().byte_add(bytes) }
    }

    /// The list of the zone that serves requests for a kind first.
    #[inline(always)]
    pub(in crate::page_alloc) fn first_list(&self, kind: ZoneKind, number: usize) -> &FrameList {
        &self.first[kind as usize][number]
    }

    /// Every list that can hold anything, with its index.
    pub(in crate::page_alloc) fn indexed(&self) -> impl Iterator<Item = (usize, &FrameList)> {
        self.lists.as_slice().as_flattened().iter().enumerate().filter(|(_, list)| list.capacity() > 0)
    }

    /// What its lists have parked, with their indices.
    pub(in crate::page_alloc) fn all_parked(&self) -> impl Iterator<Item = (usize, &FrameList, &Parked)> {
        self.indexed().filter_map(|(at, list)| Some((at, list, self.parked(at)?)))
    }

    /// Frames on the lists of one zone, parked ones included.
    pub(in crate::page_alloc) fn frames_of_zone(&self, zone: usize) -> u64 {
        let of_zone = self.indexed().filter(|(at, _)| at / LISTS == zone);
        let frames = |(at, list): (usize, &FrameList)| {
            let parked = self.parked(at).map_or(0, |parked| parked.count() as usize);
            ((list.cached() + parked * list.magazine_folios()) as u64) << order_of(at % LISTS).get()
        };
        of_zone.map(frames).sum()
    }
}

/// All that a CPU keeps for itself.
pub(in crate::page_alloc) struct CpuLists {
    pub(in crate::page_alloc) levels: [Level; LEVELS],
    /// Folios freed where nothing else could be done; linked through their descriptors.
    pub(in crate::page_alloc) deferred: Stack,
    /// Frames on the deferred stack.
    pub(in crate::page_alloc) deferred_frames: AtomicU64,
    /// The right to revoke this CPU's leases.
    pub(in crate::page_alloc) drain: SpinLock<()>,
    /// For each mobility group, the block that a folio of a middle order came from last, plus one. A hint.
    pub(in crate::page_alloc) last_block: [AtomicU32; 3],
    /// Where this CPU sorts folios by block. Belongs to the first level's lease.
    pub(in crate::page_alloc) sorter: BootSlice<SortEntry>,
}

/// Where the lists of one level find their slots: `take(list, slots)` gives that many.
pub(in crate::page_alloc) struct ListSizes<'a> {
    /// Frames of each zone.
    pub(in crate::page_alloc) zone_frames: &'a dyn Fn(usize) -> u64,
    pub(in crate::page_alloc) zones: usize,
    pub(in crate::page_alloc) cpus: usize,
}

impl ListSizes<'_> {
    /// Blocks by which each CPU sorts: few where there are few.
    pub(in crate::page_alloc) fn sorter_blocks(&self) -> usize {
        let blocks: u64 = (0..self.zones).map(|zone| (self.zone_frames)(zone) >> Order::BLOCK.get()).sum();
        (blocks as usize / 16).clamp(1, SORTER_BLOCKS).next_power_of_two()
    }

    /// Slots for list `at` of level `level`, counted over all zones.
    pub(in crate::page_alloc) fn slots(&self, level: usize, at: usize) -> usize {
        let capacity = if level == 0 { capacity_of } else { nested_capacity_of };
        capacity(at % LISTS, (self.zone_frames)(at / LISTS), self.cpus)
    }
}

impl CpuLists {
    /// `lists[level]` holds the lists of each zone; `first` names the zone that serves this CPU first, by kind. `None` if
    /// there is no such zone.
    pub(in crate::page_alloc) fn new(
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
    pub(in crate::page_alloc) fn make_list(slots: BootSlice<Slot>, guarded: bool) -> FrameList {
        FrameList::new(slots, guarded)
    }
}

const _: () = assert!(MAGAZINE_FRAMES <= BLOCK_FRAMES);
const _: () = assert!(size_of::<FrameList>() == LIST_BYTES);
const _: () = assert!(MAX_NODES * KINDS * size_of::<ZoneLists>() <= 1 << 16, "a record says it in 16 bits");
