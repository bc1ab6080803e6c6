//! The kernel's heap: `Box`, `Arc` and `Vec` are slabs and folios of Quire.
//!
//! Rust's small containers cannot report that memory is short. So when Quire has none, an allocation of at most 64 KiB
//! gets a folio that was set aside, and the task that took it fills the reserve again before it returns to its program
//! (`crate::task::oom`). Larger allocations fail, and their callers must expect it. What a call makes many of goes
//! to a list, which fails when half of the reserve is used ([`super::list`]).

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use quire::limits::FRAME_SIZE;
use quire_interop::Heap;

use super::failures;
use super::platform::Machine;
use crate::cpu::area::{self, MAX_CPUS};

/// How many folios of 1, 2, 4, 8 and 16 frames are set aside where there are [`MAX_CPUS`]: single frames for
/// the objects that as many CPUs make in one call each, and larger ones for lists that grow.
const FOLIOS: [usize; 5] = [128, 4, 2, 2, 2];
const SLOTS: usize = 128 + 4 + 2 + 2 + 2;
/// Fewer CPUs set their share aside, but not less than that of so many: one call may make more than others.
const LEAST_CPUS: usize = 2;

/// The heap with its reserve.
pub struct KernelHeap {
    heap: Heap<Machine>,
    /// Folios of the inner heap, in the order of [`FOLIOS`], or null.
    reserve: [AtomicPtr<u8>; SLOTS],
    /// A folio was taken since [`Self::refill`] found all there.
    is_used: AtomicBool,
    /// See [`Self::is_short`].
    is_short: AtomicBool,
    /// See [`Self::taken`].
    taken: AtomicU64,
}

impl KernelHeap {
    /// A heap that has no memory yet.
    pub const fn new() -> Self {
        let reserve = [const { AtomicPtr::new(null_mut()) }; SLOTS];
        let (is_used, is_short) = (AtomicBool::new(true), AtomicBool::new(false));
        Self { heap: Heap::new(), reserve, is_used, is_short, taken: AtomicU64::new(0) }
    }

    /// Quire's heap below.
    pub fn inner(&self) -> &Heap<Machine> {
        &self.heap
    }

    /// Fills the reserve as far as there is memory. Returns whether it is full.
    pub fn refill(&self) -> bool {
        if !self.is_used.swap(false, Ordering::Relaxed) {
            return true;
        }
        // Each slot is tried: the next allocation may succeed.
        let empty = self.slots().filter(|&(slot, layout)| !self.fill(slot, layout)).count();
        self.is_used.fetch_or(empty != 0, Ordering::Relaxed);
        self.note_use();
        empty == 0
    }

    /// Whether half of the single frames are used.
    pub fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }

    /// How many folios of the reserve were handed out.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    fn note_use(&self) {
        let singles = || self.slots().filter(|(_, layout)| layout.size() == FRAME_SIZE as usize);
        let empty = singles().filter(|(slot, _)| slot.load(Ordering::Relaxed).is_null()).count();
        self.is_short.store(2 * empty >= singles().count(), Ordering::Relaxed);
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
        let fitting = self.slots().filter(|(_, layout)| layout.size() == order * FRAME_SIZE as usize);
        let mut folios = fitting.map(|(slot, _)| slot.swap(null_mut(), Ordering::Acquire));
        let folio = folios.find(|folio| !folio.is_null()).unwrap_or(null_mut());
        self.taken.fetch_add(u64::from(!folio.is_null()), Ordering::Relaxed);
        self.note_use();
        folio
    }

    fn slots(&self) -> impl Iterator<Item = (&AtomicPtr<u8>, Layout)> {
        let cpus = area::count().max(LEAST_CPUS);
        let layouts = FOLIOS.iter().enumerate().flat_map(move |(order, &most)| {
            let count = (most * cpus).div_ceil(MAX_CPUS);
            let bytes = (FRAME_SIZE as usize) << order;
            let layout = Layout::from_size_align(bytes, bytes).expect("a small power of two");
            core::iter::repeat_n(layout, count)
        });
        self.reserve.iter().zip(layouts)
    }

    /// How many of Quire's frames are in the reserve.
    pub fn reserved_frames(&self) -> u64 {
        let full = self.slots().filter(|(slot, _)| !slot.load(Ordering::Relaxed).is_null());
        full.map(|(_, layout)| layout.size() as u64 / FRAME_SIZE).sum()
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
