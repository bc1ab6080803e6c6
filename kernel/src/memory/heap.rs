//! The kernel's heap: `Box`, `Arc` and `Vec` are slabs and folios of Quire.
//!
//! Rust's small containers cannot report that memory is short. So when Quire has none, an allocation of at most a
//! page comes out of a reserve that was set aside at start-up, and the task that used it up makes room before it
//! returns to its program (`crate::task::oom`). Larger allocations fail, and their callers must expect it.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU64, Ordering};

use quire::limits::FRAME_SIZE;
use quire_interop::Heap;

use super::platform::Machine;
use crate::cpu::area;

const BLOCK: usize = FRAME_SIZE as usize;
/// The bits of a word.
const BITS: usize = 64;
/// Enough for the objects that eight CPUs make in one call each.
const WORDS: usize = 2;
const BLOCKS: usize = WORDS * BITS;

#[repr(C, align(4096))]
struct Blocks(UnsafeCell<[[u8; BLOCK]; BLOCKS]>);

// SAFETY: a block is used by the allocation that has its bit.
unsafe impl Sync for Blocks {}

static BLOCKS_OF_RESERVE: Blocks = Blocks(UnsafeCell::new([[0; BLOCK]; BLOCKS]));
/// One bit for each block in use.
static IN_USE: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

/// The heap with its reserve.
pub struct KernelHeap {
    heap: Heap<Machine>,
}

impl KernelHeap {
    /// A heap that has no memory yet.
    pub const fn new() -> Self {
        Self { heap: Heap::new() }
    }

    /// Quire's heap below.
    pub fn inner(&self) -> &Heap<Machine> {
        &self.heap
    }
}

/// Whether a part of the reserve is in use: memory is short.
pub fn is_reserve_used() -> bool {
    IN_USE.iter().any(|word| word.load(Ordering::Relaxed) != 0)
}

// SAFETY: each allocation is one of Quire's heap, or a block of the reserve whose bit was taken; the addresses tell
// them apart.
unsafe impl GlobalAlloc for KernelHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract is the same.
        let memory = unsafe { self.heap.alloc(layout) };
        if memory.is_null() { take_block(layout) } else { memory }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        match block_of(memory) {
            Some(block) => give_back(block),
            // SAFETY: the memory is the inner heap's, and the caller's contract is the same.
            None => unsafe { self.heap.dealloc(memory, layout) },
        }
    }
}

fn take_block(layout: Layout) -> *mut u8 {
    if layout.size() > BLOCK || layout.align() > BLOCK {
        return null_mut();
    }
    // The task looks at the reserve on its way to its program.
    area::this().set_need_resched(true);
    for (index, word) in IN_USE.iter().enumerate() {
        let free = |bits: u64| (bits != u64::MAX).then(|| bits | 1 << bits.trailing_ones());
        if let Ok(before) = word.fetch_update(Ordering::Acquire, Ordering::Relaxed, free) {
            let block = index * BITS + before.trailing_ones() as usize;
            return BLOCKS_OF_RESERVE.0.get().cast::<u8>().wrapping_add(block * BLOCK);
        }
    }
    null_mut()
}

fn give_back(block: usize) {
    IN_USE[block / BITS].fetch_and(!(1 << (block % BITS)), Ordering::Release);
}

/// The block of the reserve at an address.
fn block_of(memory: *mut u8) -> Option<usize> {
    let offset = memory.addr().checked_sub(BLOCKS_OF_RESERVE.0.get().addr())?;
    (offset < BLOCKS * BLOCK).then_some(offset / BLOCK)
}
