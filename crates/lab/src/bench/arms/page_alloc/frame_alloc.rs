//! The crate `frame-alloc`: a buddy without locks, and a cache for each CPU in front of it.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::Arc;

use frame_alloc::{
    CpuId, DepotAllocator, PageSize, PhysRange, PhysicalAllocator, Provenance, RegionInit,
    SummaryBuddyAllocator,
};
use hosted::Pinned;

use super::case::{Frames, PageAlloc};
use super::loops::prepare;
use super::peer;
use crate::bench::experiment::{Arm, Prepared, Skip};
use crate::bench::folio::PAGE;
use crate::bench::linux::region::Region;

pub(super) const NAME: &str = "frame-alloc";

const BASE: PageSize = PageSize::from_log2(PAGE.ilog2() as u8);
/// Orders 0 to 9.
const ORDERS: usize = 10;
/// The most CPUs of a case.
const CPUS: usize = 4;
/// Requests of several threads may fail while memory is free, says its documentation, and should be repeated.
const TRIES: usize = 1000;

type Cached = DepotAllocator<SummaryBuddyAllocator<ORDERS, Identity>, Running, CPUS>;

/// `DepotAllocator` over `SummaryBuddyAllocator`, as its documentation puts them together.
pub(super) struct FrameAlloc;

impl Arm<PageAlloc> for FrameAlloc {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "SummaryBuddyAllocator of version 0.1, which has no lock, behind DepotAllocator: 128 frames for each CPU \
         under a lock of its own, 512 for all, which interrupts may not use (NoInterruptControl)."
    }

    fn setup(&mut self, case: &PageAlloc) -> Result<Box<dyn Prepared + '_>, Skip> {
        let (frames, threads) = (case.frames, case.threads);
        if threads > CPUS {
            return Err(Skip(format!("the arm is made for at most {CPUS} CPUs")));
        }
        let tries = if threads == 1 { 1 } else { TRIES };
        prepare(case, move || {
            let shared = Arc::new(Managed::new(frames)?);
            Ok((0..threads).map(|cpu| OnCpu { shared: Arc::clone(&shared), cpu, tries }).collect())
        })
    }
}

thread_local! {
    static CPU: Cell<usize> = const { Cell::new(0) };
}

struct Running;

impl CpuId for Running {
    #[inline(always)]
    fn current_cpu() -> usize {
        CPU.get()
    }
}

/// Addresses are those of the mapped memory.
struct Identity;

// SAFETY: C1: the arm gives the allocator mapped memory alone, whose addresses these are.
unsafe impl Provenance for Identity {
    #[inline(always)]
    unsafe fn create(phys: usize) -> NonNull<u8> {
        // SAFETY: C1: mapped memory is not at null.
        unsafe { NonNull::new_unchecked(std::ptr::with_exposed_provenance_mut(phys)) }
    }

    #[inline(always)]
    unsafe fn destroy<T>(at: NonNull<T>) -> usize {
        at.addr().get()
    }
}

/// The allocator and its memory; the memory is dropped last.
struct Managed {
    allocator: Cached,
    _memory: Region,
}

impl Managed {
    fn new(frames: usize) -> Result<Self, Skip> {
        let bytes = frames * PAGE;
        let mut memory = peer::memory(bytes)?;
        let base = memory.as_bytes().as_mut_ptr().expose_provenance();
        let allocator = Cached::new(BASE, SummaryBuddyAllocator::new(BASE));
        // SAFETY: C1: the memory is mapped, zero, aligned to 2 MiB and reached by this value alone; `Managed`
        // drops it after the allocator, and the loops name frames by address and never dereference them.
        unsafe { allocator.init(base, bytes, &[PhysRange { base, len: bytes }]) };
        Ok(Self { allocator, _memory: memory })
    }
}

/// The allocator as one CPU sees it. Its caches are those of a CPU, so preemption is off.
struct OnCpu {
    shared: Arc<Managed>,
    cpu: usize,
    tries: usize,
}

#[inline(always)]
const fn count_of<const ORDER: u8>() -> NonZeroUsize {
    NonZeroUsize::new(1 << ORDER).expect("an order is below the bits of a word")
}

impl Frames for OnCpu {
    type Frame = usize;

    fn as_cpu<R>(&mut self, body: impl FnOnce(&mut Self) -> R) -> R {
        CPU.set(self.cpu);
        body(self)
    }

    #[inline(always)]
    fn take<const ORDER: u8>(&mut self) -> Option<usize> {
        let _pinned = Pinned::begin();
        let allocator = &self.shared.allocator;
        (0..self.tries).find_map(|_| allocator.allocate_physical(BASE, count_of::<ORDER>()).ok())
    }

    #[inline(always)]
    fn give<const ORDER: u8>(&mut self, frame: usize) {
        let _pinned = Pinned::begin();
        // SAFETY: C1: the loops give back what they took, by the same order, once.
        unsafe { self.shared.allocator.deallocate_physical(BASE, count_of::<ORDER>(), frame) };
    }
}
