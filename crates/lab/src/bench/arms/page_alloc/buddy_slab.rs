//! The crate `buddy-slab-allocator`: buddy lists through page metadata.

use buddy_slab_allocator::BuddyAllocator;

use super::case::PageAlloc;
use super::peer::{self, Unlocked, prepare_unlocked};
use crate::bench::experiment::{Arm, Prepared, Skip};
use crate::bench::folio::PAGE;
use crate::bench::linux::region::Region;

pub(super) const NAME: &str = "buddy-slab-allocator";

/// `BuddyAllocator` over real memory, since it keeps its metadata there.
pub(super) struct BuddySlab;

/// The allocator and its memory; the memory is dropped last.
struct Managed {
    buddy: BuddyAllocator<PAGE>,
    _memory: Region,
}

impl Arm<PageAlloc> for BuddySlab {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "BuddyAllocator of version 0.6, which has no lock: with several threads, a spin lock is around every \
         call. It aligns folios to its own start, not to their size."
    }

    fn setup(&mut self, case: &PageAlloc) -> Result<Box<dyn Prepared + '_>, Skip> {
        let frames = case.frames;
        prepare_unlocked(case, move || Managed::new(frames))
    }
}

impl Managed {
    fn new(frames: usize) -> Result<Self, Skip> {
        let mut memory = peer::memory(frames * PAGE)?;
        let mut buddy = BuddyAllocator::<PAGE>::new();
        // SAFETY: C1: the memory is mapped, zero, aligned to 2 MiB and reached by this value alone; `Managed`
        // drops it after the allocator, and the loops name frames by address and never dereference them.
        unsafe { buddy.init(memory.as_bytes()) }
            .map_err(|error| Skip(format!("BuddyAllocator refuses the memory: {error:?}")))?;
        Ok(Self { buddy, _memory: memory })
    }
}

impl Unlocked for Managed {
    #[inline(always)]
    fn take<const ORDER: u8>(&mut self) -> Option<usize> {
        self.buddy.alloc_pages(1 << ORDER, PAGE).ok()
    }

    #[inline(always)]
    fn give<const ORDER: u8>(&mut self, frame: usize) {
        self.buddy.dealloc_pages(frame, 1 << ORDER);
    }

    fn free_frames(&self) -> Option<u64> {
        Some(self.buddy.free_pages() as u64)
    }
}
