//! The running kernel's page allocator, as near as a process comes to it.

use rustix::mm::Advice;

use super::measured::Measured;
use super::{Frames, PageAlloc};
use crate::bench::experiment::{Arm, Prepared, Skip};
use crate::bench::folio::{Folio, PAGE};
use crate::bench::linux::populate::FolioChooser;
use crate::bench::linux::region::Region;

/// Populates and empties memory whose VMA and page tables stay in place.
pub(super) struct Linux;

impl Arm<PageAlloc> for Linux {
    fn name(&self) -> &'static str {
        "linux"
    }

    fn about(&self) -> &'static str {
        "no system call reaches the page allocator alone, so this is the nearest: a write to an absent 4 KiB page and \
         MADV_DONTNEED of it (pair), MADV_POPULATE_WRITE and MADV_DONTNEED of the whole range (bulk). Includes trap or \
         call, clearing, cgroup charge, reverse map, LRU, page-table entry and flush (with two \
         threads, an interrupt to the other CPU as well); not comparable with the rest."
    }

    fn setup(&mut self, case: &PageAlloc) -> Result<Box<dyn Prepared + '_>, Skip> {
        let source = |_| {
            let pages = if case.operation == super::Operation::Pair { 1 } else { case.count };
            let region = FolioChooser::default().map(pages * PAGE, Folio { order: 0, pmd: false })?;
            // Both ways once: page tables are then there, and the machine below has the memory.
            let warm =
                region.advise(Advice::LinuxPopulateWrite).and_then(|()| region.advise(Advice::LinuxDontNeed));
            warm.map_err(|error| {
                Skip::because("MADV_POPULATE_WRITE (needs Linux 5.14 and free memory)", error)
            })?;
            Ok(KernelFrames { region, refused: false })
        };
        let sources: Result<Vec<KernelFrames>, Skip> = (0..case.threads).map(source).collect();
        Ok(Box::new(Measured::new(case, sources?)))
    }
}

/// Pages of one region stand for frames; a page that is populated has one.
struct KernelFrames {
    region: Region,
    // The kernel kept a page that was given back: no further figure would mean anything.
    refused: bool,
}

impl Frames for KernelFrames {
    #[inline]
    fn alloc(&mut self) -> Option<usize> {
        self.region.touch(0);
        (!self.refused).then_some(self.region.start())
    }

    #[inline]
    fn free(&mut self, frame: usize) {
        let page = (frame - self.region.start()) / PAGE;
        self.refused |= self.region.advise_pages(page, 1, Advice::LinuxDontNeed).is_err();
    }

    fn alloc_bulk(&mut self, frames: &mut [usize]) -> usize {
        if self.refused || self.region.advise_pages(0, frames.len(), Advice::LinuxPopulateWrite).is_err() {
            return 0;
        }
        for (page, frame) in frames.iter_mut().enumerate() {
            *frame = self.region.start() + page * PAGE;
        }
        frames.len()
    }

    fn free_bulk(&mut self, frames: &[usize]) {
        self.refused |= self.region.advise_pages(0, frames.len(), Advice::LinuxDontNeed).is_err();
    }
}
