//! Faults on file pages that are not mapped.

use crate::addr::{Frame, FrameRange, Order, PageSize, VirtAddr, VirtRange};
use crate::arch::Access;
use crate::arch::{EntryFlags, Level, Protection};
use crate::error::FaultError;
use crate::filemap::{FileKind, FileRef, FileUse};
use crate::limits::{BLOCK_FRAMES, BLOCK_SIZE, FAULT_AROUND_PAGES, FRAME_SIZE};
use crate::page_alloc::Origin;
use crate::pgtable::Lookup;
use crate::platform::{Platform, TouchHint};
use crate::stats::Stat;
use crate::vm::fault::faults::{Faults, mapped};
use crate::vm::fault::flags::leaf_flags;
use crate::vm::fault::step::{FaultKind, Step};
use crate::vm::file::handle::File;
use crate::vm::mapping::vma::{Backing, Vma};
use crate::vm::userfault::UserfaultModes;

impl<P: Platform> Faults<'_, '_, P> {
    #[inline(never)]
    pub(super) fn fault_file(
        self,
        vma: &Vma,
        addr: VirtAddr,
        access: Access,
        found: &Lookup,
    ) -> Result<Step, FaultError> {
        let (Backing::File { file: reference, .. }, Some(index)) =
            (&vma.attributes.backing, vma.file_page(addr))
        else {
            return Err(FaultError::NotMapped);
        };
        // While `file` lives, the page cannot be dropped.
        let Some(file) = reference.node().enter() else { return Ok(Step::Again) };
        let memory = self.memory;
        let Some(frame) = memory.files().page_at_hand(memory.pages(), &file, index)? else {
            return Ok(Step::Read(reference.again(), index));
        };
        if found.level > Level::PTE
            && let Some(step) = self.map_file_block(vma, addr, access, &file, frame)
        {
            return Ok(step);
        }
        let addr = addr.align_down(PageSize::Size4K.bytes());
        match (access, vma.attributes.is_private()) {
            (Access::Write, true) => self.copy_file_page(vma, addr, frame),
            (Access::Write, false) => {
                if matches!(file.node().kind(), FileKind::Paged(_)) {
                    memory.files().mark_dirty(memory.platform(), file.node(), index);
                }
                self.map_file_page(vma, addr, &file, frame, true)
            }
            _ => {
                // Shared anonymous memory is never written back, so its first store needs no fault.
                let writable =
                    !vma.attributes.is_private() && matches!(file.node().kind(), FileKind::Shmem { .. });
                let step = self.map_file_page(vma, addr, &file, frame, writable)?;
                if !vma.attributes.handler.catches(UserfaultModes::MINOR) {
                    self.map_around(vma, addr, &file, writable);
                }
                Ok(step)
            }
        }
    }

    /// Brings a page of a file into the cache, while the caller holds no lock. Returns whether this task had
    /// it read.
    pub(in crate::vm) fn read_page(self, file: FileRef, index: u64) -> Result<bool, FaultError> {
        let file = File::from_parts(self.memory, file);
        let memory = self.memory;
        let used = loop {
            match file.node().enter() {
                Some(used) => break used,
                None => memory.platform().relax(),
            }
        };
        let page = memory.files().page(memory.pages(), &used, index)?;
        memory.pages().count(Stat::Pgmajfault, u64::from(page.major));
        Ok(page.major)
    }

    /// Copies a page at once for a store to a private mapping that does not map it yet.
    fn copy_file_page(self, vma: &Vma, addr: VirtAddr, from: Frame) -> Result<Step, FaultError> {
        let pages = self.memory.pages();
        let copy = pages.alloc(self.request_for(vma), Order::FRAME)?;
        let from = FrameRange::folio(from, Order::FRAME);
        // SAFETY: invariant 1: this task has just allocated the target. The source is another frame, of the file.
        unsafe { pages.frames().copy_frames(from, copy.frame(), TouchHint::Soon) };
        let origin = Origin::new(self.family, vma.attributes.origin_of(addr));
        let copy = pages.requests().with_origin(copy, origin)?;
        let flags = leaf_flags(&vma.attributes, true).union(EntryFlags::ANON);
        // SAFETY: invariant 1: the copy's value is given up once it is mapped.
        let done = mapped(unsafe { self.tables().map(addr, copy.frames(), flags) });
        if done != Ok(true) {
            self.memory.give_up(copy);
            return done.map(|_| Step::Again);
        }
        // The leaf owns it.
        let _ = copy.into_raw();
        self.add_anon(1);
        pages.count(Stat::CowCopy, 1);
        Ok(Step::done(Order::FRAME, FaultKind::Cow))
    }

    /// Maps the 2 MiB around a page by one leaf, if its pages lie in one block in order and the mapping
    /// allows it. `None`: the caller maps the page alone.
    fn map_file_block(
        self,
        vma: &Vma,
        addr: VirtAddr,
        access: Access,
        file: &FileUse<'_>,
        frame: Frame,
    ) -> Option<Step> {
        let range = VirtRange::from_len(addr.align_down(BLOCK_SIZE), BLOCK_SIZE);
        let writable = vma.may_map_block(range).filter(|writable| *writable || access != Access::Write)?;
        let pages = self.memory.pages();
        let block = self.memory.files().block_of(pages, file, vma.file_page(addr)?, frame)?;
        let flags = leaf_flags(&vma.attributes, writable);
        // SAFETY: invariant 1: the page cache holds the pages of the block.
        unsafe { self.tables().map_large(range.start, block, PageSize::Size2M, flags) }.ok()?;
        self.add_file(file.node().kind(), BLOCK_FRAMES as i64);
        pages.count(Stat::ThpFileMapped, 1);
        Some(Step::done(Order::BLOCK, FaultKind::FileMinor))
    }

    fn map_file_page(
        self,
        vma: &Vma,
        addr: VirtAddr,
        file: &FileUse<'_>,
        frame: Frame,
        writable: bool,
    ) -> Result<Step, FaultError> {
        let flags = leaf_flags(&vma.attributes, writable);
        // SAFETY: invariant 1: the page cache holds the page.
        if !mapped(unsafe { self.tables().map(addr, FrameRange::folio(frame, Order::FRAME), flags) })? {
            return Ok(Step::Again);
        }
        self.add_file(file.node().kind(), 1);
        Ok(Step::done(Order::FRAME, FaultKind::FileMinor))
    }

    /// Maps the neighbours of a page that are in memory: of 64 KiB that start at a multiple of their size, or where
    /// the mapping does, inside the mapping and the page's table. So does Linux (`do_fault_around`). Pages that
    /// cannot be mapped are left to their own faults.
    fn map_around(self, vma: &Vma, addr: VirtAddr, file: &FileUse<'_>, writable: bool) {
        let window = FAULT_AROUND_PAGES * FRAME_SIZE;
        let start = addr.align_down(window).max(vma.range.start);
        let table_end = addr.align_down(BLOCK_SIZE).add(BLOCK_SIZE);
        let end = start.add(window).min(vma.range.end).min(table_end);
        let Some(first) = vma.file_page(start) else { return };
        let mut frames = [None; FAULT_AROUND_PAGES as usize];
        let frames = &mut frames[..((end.0 - start.0) / FRAME_SIZE) as usize];
        self.memory.files().around(self.memory.platform(), file, first, frames);
        let flags = leaf_flags(&vma.attributes, writable);
        let mut mapped = 0;
        let mut at = 0;
        while at < frames.len() {
            let Some(run) = run_at(&frames[at..]) else {
                at += 1;
                continue;
            };
            let addr = start.add(at as u64 * FRAME_SIZE);
            // SAFETY: invariant 1: the page cache holds the pages.
            mapped += unsafe { self.tables().map_where_empty(addr, run, flags) }.unwrap_or(0);
            at += run.count as usize;
        }
        self.add_file(file.node().kind(), mapped as i64);
        self.memory.pages().count(Stat::FaultAround, mapped);
    }
}

/// The consecutive frames of one block at the start of the list.
fn run_at(frames: &[Option<Frame>]) -> Option<FrameRange> {
    let first = (*frames.first()?)?;
    let count = (0u64..)
        .zip(frames)
        .take_while(|(step, frame)| {
            **frame == Some(first.add(*step)) && first.add(*step).block() == first.block()
        })
        .count();
    Some(FrameRange::new(first, count as u64))
}

/// Whether the mapping is shared and allows stores.
pub(super) fn is_shared_writable(vma: &Vma) -> bool {
    !vma.attributes.is_private() && vma.attributes.protection.contains(Protection::WRITE)
}
