//! The global allocator.

use std::alloc::{GlobalAlloc, Layout};

use hosted::{FailurePlan, Hosted};
use quire::platform::Context;
use quire_interop::Heap;

use crate::with_pages;

type TestHeap = Heap<Hosted>;

/// A live block, filled with its number.
struct Block {
    memory: *mut u8,
    layout: Layout,
    fill: u8,
}

impl Block {
    fn alloc(heap: &TestHeap, layout: Layout, fill: u8, zeroed: bool) -> Self {
        // SAFETY: E1: the layout has a size.
        let memory = unsafe { if zeroed { heap.alloc_zeroed(layout) } else { heap.alloc(layout) } };
        assert!(!memory.is_null(), "{layout:?}");
        let block = Self { memory, layout, fill };
        if zeroed {
            assert!(block.bytes().iter().all(|&byte| byte == 0), "{layout:?}");
        }
        block.check_place();
        block.bytes_mut().fill(fill);
        block
    }

    fn check_place(&self) {
        assert!(self.memory.addr().is_multiple_of(self.layout.align()), "{:?}", self.layout);
    }

    fn bytes(&self) -> &[u8] {
        self.bytes_mut()
    }

    #[allow(clippy::mut_from_ref, reason = "the memory is no part of the value")]
    fn bytes_mut(&self) -> &mut [u8] {
        // SAFETY: E1: the memory is this block's, and has this size.
        unsafe { std::slice::from_raw_parts_mut(self.memory, self.layout.size()) }
    }

    fn realloc(&mut self, heap: &TestHeap, size: usize) {
        let kept = self.layout.size().min(size);
        // SAFETY: E1: the memory is this block's.
        self.memory = unsafe { heap.realloc(self.memory, self.layout, size) };
        assert!(!self.memory.is_null());
        self.layout = Layout::from_size_align(size, self.layout.align()).unwrap();
        self.check_place();
        assert!(self.bytes()[..kept].iter().all(|&byte| byte == self.fill), "{:?}", self.layout);
        self.bytes_mut().fill(self.fill);
    }

    fn free(self, heap: &TestHeap) {
        assert!(
            self.bytes().iter().all(|&byte| byte == self.fill),
            "objects do not overlap: {:?}",
            self.layout
        );
        // SAFETY: E1: the memory is this block's, which is gone.
        unsafe { heap.dealloc(self.memory, self.layout) };
    }
}

/// Steps of one task.
const STEPS: u32 = if cfg!(miri) { 300 } else { 20_000 };

/// Allocates, resizes and frees at random, and frees everything at the end. Every fourth step is an interrupt's.
fn exercise(machine: &Hosted, heap: &TestHeap, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut live: Vec<Block> = Vec::new();
    for step in 0..STEPS {
        let size = if rng.u8(..8) == 0 { rng.usize(1..60_000) } else { rng.usize(1..3000) };
        let mut one = || match rng.u8(..5) {
            0 | 1 if live.len() < 200 => {
                let layout = Layout::from_size_align(size, 1 << rng.u8(..13)).unwrap();
                live.push(Block::alloc(heap, layout, step as u8, rng.bool()));
            }
            2 if !live.is_empty() => {
                let index = rng.usize(..live.len());
                live[index].realloc(heap, size);
            }
            _ if !live.is_empty() => live.swap_remove(rng.usize(..live.len())).free(heap),
            _ => {}
        };
        if step % 4 == 0 { machine.interrupt(Context::HardInterrupt, one) } else { one() }
    }
    live.into_iter().for_each(|block| block.free(heap));
    // What interrupts freed goes back when a task uses the class.
    for size in [16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 672, 1008, 1344, 2016] {
        let layout = Layout::from_size_align(size, 1).unwrap();
        Block::alloc(heap, layout, 0, false).free(heap);
    }
}

/// Invariants E1 and E2.
#[test]
fn blocks_of_all_sizes_and_alignments_keep_their_contents() {
    with_pages(1, |machine, pages| {
        let heap = TestHeap::new();
        let early = Layout::new::<u64>();
        // SAFETY: E1: the layout has a size.
        assert!(unsafe { heap.alloc(early) }.is_null(), "no memory yet");
        heap.init(pages).unwrap();
        heap.init(pages).unwrap();
        exercise(machine, &heap, 5);
    });
}

/// Invariant E2: a later call has no effect, whatever machine its memory is of, and needs none.
#[test]
fn a_heap_keeps_its_first_memory() {
    with_pages(1, |machine, pages| {
        let heap = TestHeap::new();
        heap.init(pages).unwrap();
        with_pages(1, |_, others| heap.init(others).unwrap());
        let layout = Layout::from_size_align(8192, 8).unwrap();
        Block::alloc(&heap, layout, 1, false).free(&heap);
        machine.set_failures(FailurePlan::Nth(0));
        heap.init(pages).unwrap();
        machine.set_failures(FailurePlan::Off);
    });
}

/// Invariants E1 and E3.
#[test]
fn several_cpus_share_a_heap() {
    with_pages(4, |machine, pages| {
        let heap = TestHeap::new();
        heap.init(pages).unwrap();
        machine.spawn_cpus(4, |cpu| exercise(machine, &heap, cpu.0.into()));
    });
}

/// Invariant E3.
#[test]
fn interrupts_allocate_and_free_too() {
    with_pages(1, |machine, pages| {
        let heap = TestHeap::new();
        heap.init(pages).unwrap();
        let layout = Layout::from_size_align(40, 8).unwrap();
        let first = Block::alloc(&heap, layout, 1, false);
        let mut second = machine.interrupt(Context::HardInterrupt, || {
            first.free(&heap);
            let mut second = Block::alloc(&heap, layout, 2, true);
            assert!(second.memory.addr().is_multiple_of(4096), "a frame of its own");
            second.realloc(&heap, 60);
            second
        });
        second.realloc(&heap, 2000);
        second.realloc(&heap, 5000);
        second.realloc(&heap, 41);
        assert!(!second.memory.addr().is_multiple_of(4096), "an object of a slab");
        let third = machine.interrupt(Context::HardInterrupt, || Block::alloc(&heap, layout, 3, false));
        machine.interrupt(Context::HardInterrupt, || second.free(&heap));
        third.free(&heap);
        // What interrupts freed goes when a task uses the class.
        Block::alloc(&heap, layout, 4, false).free(&heap);
    });
}

#[test]
fn without_memory_a_pointer_is_null() {
    with_pages(1, |machine, pages| {
        let heap = TestHeap::new();
        machine.set_failures(FailurePlan::Nth(0));
        assert!(heap.init(pages).is_err());
        heap.init(pages).unwrap();
        for layout in [Layout::new::<u64>(), Layout::new::<[u64; 512]>(), Layout::new::<[u64; 5000]>()] {
            for zeroed in [false, true] {
                machine.set_failures(FailurePlan::Nth(0));
                // SAFETY: E1: the layout has a size.
                let memory = unsafe { if zeroed { heap.alloc_zeroed(layout) } else { heap.alloc(layout) } };
                assert!(memory.is_null());
            }
            let block = Block::alloc(&heap, layout, 7, true);
            machine.set_failures(FailurePlan::Nth(0));
            // SAFETY: E1: the memory is the block's; the failure leaves it as it was.
            assert!(unsafe { heap.realloc(block.memory, layout, 1 << 20) }.is_null());
            block.free(&heap);
        }
        let huge = Layout::from_size_align(1 << 40, 8).unwrap();
        // SAFETY: E1: the layout has a size.
        assert!(unsafe { heap.alloc(huge) }.is_null());
        let beyond = Layout::from_size_align(isize::MAX as usize - 7, 8).unwrap();
        // SAFETY: E1: the layout has a size.
        assert!(unsafe { heap.alloc(beyond) }.is_null());
    });
}
