//! The running kernel's page allocator, as far as a process can reach it.

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
        "a write to an absent page and MADV_DONTNEED of it, or MADV_POPULATE_WRITE and MADV_DONTNEED of the \
         whole range (bulk). No system call reaches the page allocator alone, so trap, clearing, cgroup \
         charge, reverse map, LRU and flush are in the time: not comparable with the rest."
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

/// Why a process cannot ask the kernel for this case, if it cannot.
fn out_of_reach(case: &PageAlloc) -> Option<&'static str> {
    match case.operation {
        Operation::Pair(1..) => {
            Some("a process cannot choose the order of a single request: `fault` shows folios of every size")
        }
        Operation::Cross | Operation::FewFree => Some(
            "a page of a process belongs to the process, not to the CPU that allocated \
         it",
        ),
        Operation::Crowded(_) => Some("filling the machine's memory would harm every other program on it"),
        Operation::Sweep | Operation::Half(Half { bulk: false, .. }) if case.threads > 1 => {
            Some("each page costs an interrupt of the other CPU: see `pair/2threads`")
        }
        _ if case.threads > case.cpus.len() => {
            Some("each page costs interrupts of the other CPUs: see `pair/2threads`")
        }
        _ => None,
    }
}

/// Pages of one region stand for frames: a populated page has one. They are used in turn.
struct KernelFrames {
    region: Region,
    next: usize,
    // Set when the kernel keeps a page that was given back: no further figure would mean anything.
    refused: bool,
}

impl KernelFrames {
    fn new(pages: usize) -> Result<Self, Skip> {
        let region = FolioChooser::default().map(pages * PAGE, Folio { order: 0, pmd: false })?;
        // Populates both ways once, so that page tables exist and the host has brought the memory in.
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
