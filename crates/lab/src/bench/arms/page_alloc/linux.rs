//! The running kernel's page allocator, as near as a process comes to it.

use rustix::mm::Advice;

use super::case::{Frames, Half, Operation, PageAlloc};
use super::loops::prepare;
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
         MADV_DONTNEED of it (pair, sweep, single), MADV_POPULATE_WRITE and MADV_DONTNEED of the whole range (bulk). \
         Includes trap or call, clearing, cgroup charge, reverse map, LRU, page-table entry and flush (with two \
         threads, an interrupt to the other CPU as well); not comparable with the rest."
    }

    fn setup(&mut self, case: &PageAlloc) -> Result<Box<dyn Prepared + '_>, Skip> {
        if let Some(reason) = out_of_reach(case) {
            return Err(Skip(reason.to_owned()));
        }
        let pages = if matches!(case.operation, Operation::Pair(_)) { 1 } else { case.count };
        let threads = case.threads;
        prepare(case, move || (0..threads).map(|_| KernelFrames::new(pages)).collect())
    }
}

/// Why a process cannot ask the kernel for the work of the case, if it cannot.
fn out_of_reach(case: &PageAlloc) -> Option<&'static str> {
    match case.operation {
        Operation::Pair(1..) => {
            Some("a process cannot choose the order of a single request: `fault` shows folios of every size")
        }
        Operation::Cross => Some("pages of a process belong to it and not to the CPU that took them"),
        Operation::Crowded(_) => {
            Some("the machine's memory cannot be filled without harm to everything else on it")
        }
        Operation::Sweep | Operation::Half(Half { bulk: false, .. }) if case.threads > 1 => Some(
            "the same as with one thread, and an interrupt to the other CPUs for each page: `pair/2threads` has it",
        ),
        _ if case.threads > case.cpus.len() => {
            Some("every page costs interrupts to CPUs that are waited for in turn: `pair/2threads` has them")
        }
        _ => None,
    }
}

/// Pages of one region stand for frames; a page that is populated has one. They are taken in turn.
struct KernelFrames {
    region: Region,
    next: usize,
    // The kernel kept a page that was given back: no further figure would mean anything.
    refused: bool,
}

impl KernelFrames {
    fn new(pages: usize) -> Result<Self, Skip> {
        let region = FolioChooser::default().map(pages * PAGE, Folio { order: 0, pmd: false })?;
        // Both ways once: page tables are then there, and the machine below has the memory.
        let warm =
            region.advise(Advice::LinuxPopulateWrite).and_then(|()| region.advise(Advice::LinuxDontNeed));
        warm.map_err(|error| Skip::because("MADV_POPULATE_WRITE (needs Linux 5.14 and free memory)", error))?;
        Ok(Self { region, next: 0, refused: false })
    }
}

impl Frames for KernelFrames {
    type Frame = usize;

    #[inline(always)]
    fn take<const ORDER: u8>(&mut self) -> Option<usize> {
        let page = self.next;
        self.region.touch(page);
        self.next = if page + 1 == self.region.pages() { 0 } else { page + 1 };
        (ORDER == 0 && !self.refused).then_some(self.region.start() + page * PAGE)
    }

    #[inline(always)]
    fn give<const ORDER: u8>(&mut self, frame: usize) {
        let page = (frame - self.region.start()) / PAGE;
        self.refused |= self.region.advise_pages(page, 1, Advice::LinuxDontNeed).is_err();
    }

    fn take_bulk(&mut self, frames: &mut [usize]) -> usize {
        if self.refused || self.region.advise_pages(0, frames.len(), Advice::LinuxPopulateWrite).is_err() {
            return 0;
        }
        for (page, frame) in frames.iter_mut().enumerate() {
            *frame = self.region.start() + page * PAGE;
        }
        frames.len()
    }

    fn give_bulk(&mut self, frames: &[usize]) {
        self.refused |= self.region.advise_pages(0, frames.len(), Advice::LinuxDontNeed).is_err();
    }
}
