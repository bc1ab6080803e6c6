//! Per-CPU lists of free folios.
//!
//! A list is an array of folios that only its own CPU touches, pinned, under a [`Lease`], without locked
//! operations or interrupt switching. No code on the CPU ever waits for the lease. Code that finds it taken
//! has interrupted the list's user, and uses the lists of the next *level*: every CPU has [`LEVELS`] sets,
//! one for each context that can interrupt another, so that interrupts can always use a list. Most interrupts
//! come while no code is inside, and use the first level, as tasks do, whose folios are warm.
//!
//! Overflow of the array is *parked* ([`super::parked`]): whole magazines that other CPUs may take under a
//! small lock, without disturbing the owner. For the array itself they revoke the lease ([`super::drain`]).
//!
//! A folio on a list has the state [`FrameState::FREE`](crate::memmap::FrameState::FREE), so that a second
//! free is noticed. The common path writes only that byte, the array and two counters, and no descriptor.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::addr::Order;
use crate::limits::{BLOCK_FRAMES, MAGAZINE_FRAMES, MAX_NODES, NESTED_SLOTS, SORTER_BLOCKS};
use crate::memmap::{BootCell, BootSlice, LIST_BYTES, LISTS};
use crate::page_alloc::frames::CONTEXTS;
use crate::page_alloc::pcp::list::{FrameList, ListEntry};
use crate::page_alloc::pcp::parked::Parked;
use crate::page_alloc::pcp::rest::Rest;
use crate::page_alloc::request::gfp::{KINDS, Mobility, ZoneKind};
use crate::page_alloc::store::sorting::SortEntry;
use crate::rank::Rank;
use crate::sync::{Lease, SpinLock, Stack};

/// The list of order 9. Each smaller order has one for each mobility group.
pub(in crate::page_alloc) const HUGE: usize = Order::BLOCK.get() as usize * 3;
/// Nested contexts on one CPU: task, soft interrupt, hard interrupt.
pub(in crate::page_alloc) const LEVELS: usize = CONTEXTS;

#[inline(always)]
pub(in crate::page_alloc) fn list_of(order: Order, mobility: Mobility) -> Option<usize> {
    match order.get() {
        small @ 0..=8 => Some(usize::from(small) * 3 + mobility as usize),
        9 => Some(HUGE),
        _ => None,
    }
}

#[inline]
pub(in crate::page_alloc) fn order_of(list: usize) -> Order {
    let order = if list >= HUGE { Order::BLOCK.get() } else { (list / 3) as u8 };
    Order::new(order).unwrap_or(Order::FRAME)
}

/// Slots, a power of two, of a first-level list: all CPUs' arrays have about a quarter of the zone at most.
fn capacity_of(list: usize, zone_frames: u64, cpus: usize) -> usize {
    let order = order_of(list).get();
    let share = zone_frames / (4 * cpus as u64 * LISTS as u64);
    let slots = (share >> order) as usize;
    if list > HUGE || slots < LEAST_SLOTS {
        return 0;
    }
    // An array of orders 4 to 8 has about 2 MiB at most, that of order 9 a few folios.
    let most = if list == HUGE { HUGE_SLOTS } else { LEAST_SLOTS.max(BLOCK_FRAMES >> order) };
    1 << slots.min(most).min(MAGAZINE_FRAMES >> order.min(5)).ilog2()
}

const LEAST_SLOTS: usize = 4;
const HUGE_SLOTS: usize = 8;

fn nested_capacity_of(list: usize, zone_frames: u64, cpus: usize) -> usize {
    let slots = (capacity_of(list, zone_frames, cpus) / 4).min(NESTED_SLOTS >> order_of(list).get().min(3));
    if slots < 2 { 0 } else { slots }
}

/// The lists of one zone; entries without an order are padding.
pub(in crate::page_alloc) type ZoneLists = [FrameList; LISTS];

/// The lists of one level of one CPU.
#[repr(align(128))]
pub(in crate::page_alloc) struct Level {
    pub(in crate::page_alloc) lease: Lease,
    /// For each kind, the lists of the zone that served this CPU last. The slow path begins with the first
    /// zone, so this is another one only while that one is short.
    serving: [BootCell<ZoneLists>; 3],
    /// The lists of each zone.
    lists: BootSlice<ZoneLists>,
    /// Each list's parked magazines. First level only.
    parked: BootSlice<Parked>,
}

impl Level {
    /// Shuts the lists to the common path, which uses the first level's alone.
    pub(in crate::page_alloc) fn shut(&self) {
        self.indexed().for_each(|(_, list)| list.shut());
    }

    /// The parked magazines of the list with this index in the level.
    pub(in crate::page_alloc) fn parked(&self, at: usize) -> Option<&Parked> {
        self.parked.as_slice().get(at)
    }

    #[inline(always)]
    pub(in crate::page_alloc) fn list(&self, zone: usize, number: usize) -> &FrameList {
        &self.lists[zone][number]
    }

    /// The list at an offset in bytes, which the record of a folio in use names.
    #[inline(always)]
    pub(in crate::page_alloc) fn list_at(&self, bytes: usize) -> &FrameList {
        debug_assert!(bytes < self.lists.len() * LISTS * LIST_BYTES);
        // SAFETY: G5: a record that says a folio is in use names a zone, and `bytes` a list of it.
        unsafe { &*self.lists.as_slice().as_ptr().cast::<FrameList>().byte_add(bytes) }
    }

    /// The list of the zone that served a kind last.
    #[inline(always)]
    pub(in crate::page_alloc) fn serving_list(&self, kind: ZoneKind, number: usize) -> &FrameList {
        &self.serving[kind as usize][number]
    }

    /// From now on this zone's lists serve the common path of requests for a kind.
    pub(in crate::page_alloc) fn serve_from(&self, kind: ZoneKind, zone: usize) {
        if let Some(lists) = self.lists.entry(zone) {
            self.serving[kind as usize].set(lists);
        }
    }

    /// Every list that has slots, with its index.
    pub(in crate::page_alloc) fn indexed(&self) -> impl Iterator<Item = (usize, &FrameList)> {
        self.lists.as_slice().as_flattened().iter().enumerate().filter(|(_, list)| list.capacity() > 0)
    }

    /// The lists that have folios, with their indices.
    pub(in crate::page_alloc) fn filled(&self) -> impl Iterator<Item = (usize, &FrameList)> {
        let parked = |at: usize| self.parked(at).is_some_and(|parked| parked.count() > 0);
        self.indexed().filter(move |&(at, list)| list.cached() > 0 || parked(at))
    }

    /// The lists that may park, with their indices.
    pub(in crate::page_alloc) fn all_parked(&self) -> impl Iterator<Item = (usize, &FrameList, &Parked)> {
        self.indexed().filter_map(|(at, list)| Some((at, list, self.parked(at)?)))
    }

    /// Frames on the lists of one zone, parked ones included.
    pub(in crate::page_alloc) fn frames_of_zone(&self, zone: usize) -> u64 {
        let lists = self.lists.as_slice().get(zone).into_iter().flatten().enumerate();
        let frames = |(number, list): (usize, &FrameList)| {
            let parked = self.parked(zone * LISTS + number).map_or(0, |parked| parked.count() as usize);
            ((list.cached() + parked * list.magazine_folios()) as u64) << order_of(number).get()
        };
        lists.filter(|(_, list)| list.capacity() > 0).map(frames).sum()
    }
}

/// All that a CPU keeps for itself.
pub(in crate::page_alloc) struct CpuLists {
    pub(in crate::page_alloc) levels: [Level; LEVELS],
    /// Whether all lists of all levels are empty, parked magazines included, and those of the first level
    /// shut. So a request that nothing can serve need not look at them. Set while no other code uses them, or
    /// by a task that has the first level's lease; cleared before the slow path puts a folio onto one.
    pub(in crate::page_alloc) empty: AtomicBool,
    /// Whether refused requests leave the lists alone. The first level's lease protects it.
    pub(in crate::page_alloc) rest: Rest,
    /// Folios that interrupts could not give back, linked through their descriptors.
    pub(in crate::page_alloc) deferred: Stack,
    pub(in crate::page_alloc) deferred_frames: AtomicU64,
    /// Held to revoke this CPU's leases.
    pub(in crate::page_alloc) drain: SpinLock<()>,
    /// Sorts folios by block. The first level's lease protects it.
    pub(in crate::page_alloc) sorter: BootSlice<SortEntry>,
}

/// The machine's size, from which the lists' slots follow.
pub(in crate::page_alloc) struct ListSizes<'a> {
    /// Frames of each zone.
    pub(in crate::page_alloc) zone_frames: &'a dyn Fn(usize) -> u64,
    pub(in crate::page_alloc) zones: usize,
    pub(in crate::page_alloc) cpus: usize,
}

impl ListSizes<'_> {
    /// Blocks in each CPU's sorter.
    pub(in crate::page_alloc) fn sorter_blocks(&self) -> usize {
        let blocks: u64 = (0..self.zones).map(|zone| (self.zone_frames)(zone) >> Order::BLOCK.get()).sum();
        (blocks as usize / 16).clamp(1, SORTER_BLOCKS).next_power_of_two()
    }

    /// Slots of list `at` of a level, counted over all zones.
    pub(in crate::page_alloc) fn slots(&self, level: usize, at: usize) -> usize {
        let capacity = if level == 0 { capacity_of } else { nested_capacity_of };
        capacity(at % LISTS, (self.zone_frames)(at / LISTS), self.cpus)
    }
}

impl CpuLists {
    /// `lists[level]` has each zone's lists; `first` names each kind's first zone. `None` if one is missing.
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
                serving: [dma32, normal, movable].map(BootCell::new),
                lists,
                parked: if number == 0 { parked } else { BootSlice::empty() },
            });
        }
        let [Some(task), Some(soft), Some(hard)] = levels else { return None };
        Some(Self {
            levels: [task, soft, hard],
            empty: AtomicBool::new(true),
            rest: Rest::new(),
            deferred: Stack::new(),
            deferred_frames: AtomicU64::new(0),
            drain: SpinLock::new(Rank::ListDrain, ()),
            sorter,
        })
    }

    pub(in crate::page_alloc) fn make_list(slots: BootSlice<ListEntry>) -> FrameList {
        FrameList::new(slots)
    }

    /// Whether all lists are known to be empty.
    pub(in crate::page_alloc) fn known_empty(&self) -> bool {
        self.empty.load(Ordering::Relaxed)
    }

    /// Notes that this CPU's lists are empty, unless an interrupt has put folios onto some. The caller is a
    /// task that has the first level's lease, and found that level empty.
    pub(in crate::page_alloc) fn note_empty(&self) {
        // First, so that an interrupt from now on clears it.
        self.empty.store(true, Ordering::SeqCst);
        self.levels[0].shut();
        if self.levels[1..].iter().any(|level| level.filled().next().is_some()) {
            self.empty.store(false, Ordering::Relaxed);
        }
    }
}

const _: () = assert!(MAGAZINE_FRAMES <= BLOCK_FRAMES);
const _: () = assert!(size_of::<FrameList>() == LIST_BYTES);
const _: () = assert!(
    HUGE < LISTS && MAX_NODES * KINDS * size_of::<ZoneLists>() <= 2 << 16,
    "16 bits, in units of two"
);
