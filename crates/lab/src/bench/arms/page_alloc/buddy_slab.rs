//! The crate `buddy-slab-allocator`: buddy lists through page metadata.

use std::sync::Arc;

use buddy_slab_allocator::BuddyAllocator;
use spin::mutex::SpinMutex;

use super::measured::Measured;
use super::{Frames, PageAlloc};
use crate::bench::experiment::{Arm, Prepared, Skip};
use crate::bench::folio::PAGE;
use crate::bench::linux::region::Region;

pub(super) const NAME: &str = "buddy-slab-allocator";

/// `BuddyAllocator` over real memory, since it keeps its metadata there.
pub(super) struct BuddySlab;

/// The allocator and the memory that it manages; the memory goes last.
struct Managed {
    buddy: BuddyAllocator<PAGE>,
    _memory: Region,
}

impl Arm<PageAlloc> for BuddySlab {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "0.6 BuddyAllocator, which has no lock: none with one thread, a spin lock around every call with two."
    }

    fn setup(&mut self, case: &PageAlloc) -> Result<Box<dyn Prepared + '_>, Skip> {
        let mut memory = Region::map(case.frames * PAGE)
            .map_err(|error| Skip::because("cannot map the memory that the allocator is to manage", error))?;
        let mut buddy = BuddyAllocator::<PAGE>::new();
        // SAFETY: the memory is mapped, zero, 2 MiB aligned and reached by nothing else; `Managed` drops it after the
        // allocator, and frames are named by address and never dereferenced by the loops.
        unsafe { buddy.init(memory.as_bytes()) }
            .map_err(|error| Skip(format!("BuddyAllocator refuses the memory: {error:?}")))?;
        let managed = Managed { buddy, _memory: memory };
        if case.threads == 1 {
            return Ok(Box::new(Measured::new(case, vec![Bare(managed)])));
        }
        let shared = Arc::new(SpinMutex::<_>::new(managed));
        let sources = (0..case.threads).map(|_| Locked(Arc::clone(&shared))).collect();
        Ok(Box::new(Measured::new(case, sources)))
    }
}

struct Bare(Managed);

impl Frames for Bare {
    #[inline]
    fn alloc(&mut self) -> Option<usize> {
        self.0.buddy.alloc_pages(1, PAGE).ok()
    }

    #[inline]
    fn free(&mut self, frame: usize) {
        self.0.buddy.dealloc_pages(frame, 1);
    }
}

struct Locked(Arc<SpinMutex<Managed>>);

impl Frames for Locked {
    #[inline]
    fn alloc(&mut self) -> Option<usize> {
        self.0.lock().buddy.alloc_pages(1, PAGE).ok()
    }

    #[inline]
    fn free(&mut self, frame: usize) {
        self.0.lock().buddy.dealloc_pages(frame, 1);
    }
}
