//! The kernel's heap: `Box`, `Arc` and `Vec` are slabs and folios of Quire.
//!
//! Rust's small containers cannot report that memory is short. So when Quire has none, an allocation of at most 64 KiB
//! comes out of a reserve, and the task that took it sees to it that the reserve is whole again before it returns to its
//! program (`crate::task::oom`). Larger allocations fail, and their callers must expect it. What a call makes many of
//! goes to a list, which fails when half of the reserve is used ([`super::list`]).
//!
//! The reserve of single frames is the lower half of what zones keep free (`WMARK_MIN`): Quire gives it to requests of
//! the greatest urgency alone, which nothing else makes. Larger folios are set aside, because frames in a row may be
//! used up before frames are.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use quire::addr::Order;
use quire::limits::FRAME_SIZE;
use quire::page_alloc::{Gfp, Urgency};
use quire_interop::Heap;

use super::platform::Machine;
use super::{failures, layout, manager};
use crate::cpu::area::{self, MAX_CPUS};

/// How many folios of 2, 4, 8 and 16 frames are set aside where there are [`MAX_CPUS`], for lists that grow.
const FOLIOS: [usize; 4] = [4, 2, 2, 2];
const SLOTS: usize = 4 + 2 + 2 + 2;
/// How many single frames the objects take that one CPU makes in a call.
const FRAMES: u64 = 16;
/// Fewer CPUs have their share of the reserve, but not less than that of so many: one call may make more than others.
const LEAST_CPUS: usize = 2;

/// The heap with its reserve.
pub struct KernelHeap {
    heap: Heap<Machine>,
    /// Folios of the inner heap, in the order of [`FOLIOS`], or null.
    reserve: [AtomicPtr<u8>; SLOTS],
    /// Something was taken since [`Self::refill`] found the reserve whole.
    is_used: AtomicBool,
    /// Single frames that were taken since then.
    used: AtomicU64,
    /// See [`Self::taken`].
    taken: AtomicU64,
}

impl KernelHeap {
    /// A heap that has no memory yet.
    pub const fn new() -> Self {
        let reserve = [const { AtomicPtr::new(null_mut()) }; SLOTS];
        let (used, taken) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { heap: Heap::new(), reserve, is_used: AtomicBool::new(true), used, taken }
    }

    /// Quire's heap below.
    pub fn inner(&self) -> &Heap<Machine> {
        &self.heap
    }

    /// Fills the reserve as far as there is memory. Returns whether it is whole. May wait for other CPUs.
    pub fn refill(&self) -> bool {
        if !self.is_used.swap(false, Ordering::Relaxed) {
            return true;
        }
        let used = self.used.load(Ordering::Relaxed);
        // Each slot is tried: the next allocation may succeed.
        let empty = self.slots().filter(|&(slot, layout)| !self.fill(slot, layout)).count();
        let is_whole = empty == 0 && (used == 0 || keeps_its_frames());
        if is_whole {
            self.used.store(0, Ordering::Relaxed);
        } else {
            self.is_used.store(true, Ordering::Relaxed);
        }
        is_whole
    }

    /// Whether half of the single frames are used.
    pub fn is_short(&self) -> bool {
        2 * self.used.load(Ordering::Relaxed) >= frames()
    }

    /// How many folios of the reserve were handed out.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    fn fill(&self, slot: &AtomicPtr<u8>, layout: Layout) -> bool {
        if !slot.load(Ordering::Relaxed).is_null() {
            return true;
        }
        // SAFETY: E1: the layout is not empty.
        let folio = unsafe { self.heap.alloc(layout) };
        if folio.is_null() {
            return false;
        }
        if slot.compare_exchange(null_mut(), folio, Ordering::Release, Ordering::Relaxed).is_err() {
            // SAFETY: E1: it was just allocated with this layout, and another CPU has filled the slot.
            unsafe { self.heap.dealloc(folio, layout) };
        }
        true
    }

    /// A folio of the reserve for the layout, which the inner heap takes back as if it had allocated it.
    fn take(&self, wanted: Layout) -> *mut u8 {
        self.is_used.store(true, Ordering::Relaxed);
        // The task looks at the reserve on its way to its program.
        area::this().set_need_resched(true);
        let order = wanted.size().max(wanted.align()).div_ceil(FRAME_SIZE as usize).next_power_of_two();
        let folio = if order == 1 { self.take_frame() } else { self.take_folio(order * FRAME_SIZE as usize) };
        self.taken.fetch_add(u64::from(!folio.is_null()), Ordering::Relaxed);
        folio
    }

    fn take_frame(&self) -> *mut u8 {
        let Some(manager) = manager::started() else { return null_mut() };
        self.used.fetch_add(1, Ordering::Relaxed);
        let gfp = Gfp { urgency: Urgency::Reserve, ..Gfp::KERNEL };
        let folio = failures::spared(|| manager.pages().alloc(gfp, Order::FRAME));
        folio.map_or(null_mut(), |folio| layout::direct_map(folio.into_raw().addr()))
    }

    fn take_folio(&self, bytes: usize) -> *mut u8 {
        let fitting = self.slots().filter(|(_, layout)| layout.size() == bytes);
        let mut folios = fitting.map(|(slot, _)| slot.swap(null_mut(), Ordering::Acquire));
        folios.find(|folio| !folio.is_null()).unwrap_or(null_mut())
    }

    fn slots(&self) -> impl Iterator<Item = (&AtomicPtr<u8>, Layout)> {
        let cpus = area::count().max(LEAST_CPUS);
        let layouts = FOLIOS.iter().enumerate().flat_map(move |(at, &most)| {
            let count = (most * cpus).div_ceil(MAX_CPUS);
            let bytes = (FRAME_SIZE as usize) << (at + 1);
            let layout = Layout::from_size_align(bytes, bytes).expect("a small power of two");
            core::iter::repeat_n(layout, count)
        });
        self.reserve.iter().zip(layouts)
    }

    /// How many of Quire's frames are in the folios that are set aside.
    pub fn reserved_frames(&self) -> u64 {
        let full = self.slots().filter(|(slot, _)| !slot.load(Ordering::Relaxed).is_null());
        full.map(|(_, layout)| layout.size() as u64 / FRAME_SIZE).sum()
    }
}

/// How many single frames the reserve has.
pub fn frames() -> u64 {
    FRAMES * area::count().max(LEAST_CPUS) as u64
}

/// Whether zones have all that they keep free, so that other requests can be served too. What lists hold is for those.
fn keeps_its_frames() -> bool {
    let pages = manager::manager().pages();
    let is_there = || {
        let sums = pages.zone_info().map(|zone| (zone.free, zone.marks.min));
        let (free, kept) = sums.fold((0, 0), |(free, kept), zone| (free + zone.0, kept + zone.1));
        free >= kept
    };
    is_there() || {
        pages.lists().drain_all();
        is_there()
    }
}

// SAFETY: E1: each allocation is one of Quire's heap. A folio of the reserve is what that heap gives to
// interrupts and for large layouts, and its slot is empty while it is in use (X8).
unsafe impl GlobalAlloc for KernelHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        debug_assert!(
            !area::this().has_irq_locks(),
            "a handler may have interrupted the holder of a slab's lock"
        );
        if layout.size() > FRAME_SIZE as usize && failures::fails_large(layout.size()) {
            return null_mut();
        }
        // SAFETY: E1: the caller's contract is the same.
        let memory = unsafe { self.heap.alloc(layout) };
        if memory.is_null() { self.take(layout) } else { memory }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        debug_assert!(
            !area::this().has_irq_locks(),
            "a handler may have interrupted the holder of a slab's lock"
        );
        // SAFETY: E1: the memory is the inner heap's, and the caller's contract is the same.
        unsafe { self.heap.dealloc(memory, layout) }
    }
}
