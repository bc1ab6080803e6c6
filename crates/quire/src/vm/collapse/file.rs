//! Collapse of pages of files: of shared anonymous memory, and of paged files in mappings that cannot store.
//!
//! # Protocol
//!
//! The collapse moves the pages of 2 MiB into one block, in order, [`COLLAPSE_FILE_PAGES`] at a time
//! ([`crate::filemap`]): it makes these busy and unmaps them everywhere, then copies them while it holds no
//! lock and the file is open. A task that touches one of them waits until so many are copied; no other task
//! waits. No task can store through a leaf that is gone, so each page is copied once.
//!
//! Then, under the lock of the caller's address space for writing, one leaf replaces the table: both map the
//! same frames, so this takes a flush and no copy. Other address spaces that map the file lose their tables
//! of the 2 MiB, one address space after the other, and get the large leaf at the next fault, or at once
//! where memory is locked.
//!
//! A refusal need not undo anything: moved pages have the same contents in another place.
//!
//! Such a leaf counts as 512 small ones ([`crate::page_alloc`]). A verb that takes one page of it splits the
//! leaf, or unmaps all of it, which needs no memory: pages of files come back by faults.
//!
//! (Linux: `collapse_file()` in `mm/khugepaged.c`. There all tasks that want a page wait for the new folio to
//! replace the pages in the cache, and dirty pages are refused.)

use core::ops::Range;

use super::anon::STRETCH;
use super::limits::Terms;
use super::report::{Done, Refusal, refuse_if};
use crate::addr::{FrameRange, Order, PageSize, VirtRange};
use crate::clear::Copier;
use crate::error::FaultError;
use crate::filemap::{
    BlockSurvey, FileClosed, FileCollapse, FileKind, FileNode, FileUse, NotMoved, PageRuns, PagesMoving,
};
use crate::limits::{BLOCK_FRAMES, BLOCK_SIZE, COLLAPSE_FILE_PAGES, COLLAPSE_FILE_TRIES};
use crate::page_alloc::{BlockReservation, Contents};
use crate::pgtable::{Copied, Survey, TableSurvey, Zap};
use crate::platform::{Platform, TouchHint};
use crate::stats::Stat;
use crate::tlb::MmuGather;
use crate::vm::collapse::Collapse;
use crate::vm::fault::flags::leaf_flags;
use crate::vm::mapping::vma::{Vma, VmaFlags};
use crate::vm::migrate::relocate::Migration;
use crate::vm::rmap::reverse::ReverseMap;
use crate::vm::space::body::MmBody;
use crate::vm::userfault::UserfaultModes;

/// 2 MiB of a file that are collapsed for one address space.
struct Job<'a> {
    body: &'a MmBody,
    extent: VirtRange,
    terms: &'a Terms,
    collapse: FileCollapse<'a>,
    /// The file's page at the start of the extent.
    first: u64,
}

impl Job<'_> {
    fn pages(&self) -> Range<u64> {
        self.first..self.first + BLOCK_FRAMES as u64
    }
}

impl From<NotMoved> for Refusal {
    fn from(why: NotMoved) -> Self {
        match why {
            NotMoved::Missing | NotMoved::Busy => Self::Busy,
            NotMoved::Lost => Self::Lost,
            NotMoved::Watched => Self::Watched,
            NotMoved::OutOfMemory => Self::NoMemory,
        }
    }
}

impl<P: Platform> Collapse<'_, '_, P> {
    /// The caller holds no lock.
    pub(super) fn collapse_file(
        self,
        body: &MmBody,
        extent: VirtRange,
        terms: &Terms,
    ) -> Result<Done, Refusal> {
        let space = body.space.read(self.platform());
        let (_, file, first) = terms.file(&space, extent, self.policy())?;
        if self.is_large_file(body, extent)? {
            return Ok(Done::Large);
        }
        let file = file.again();
        drop(space);
        let done = match file.node().try_collapse() {
            Some(collapse) => self.collapse_pages(&Job { body, extent, terms, collapse, first }),
            None => Err(Refusal::Busy),
        };
        self.close(file);
        done
    }

    fn collapse_pages(self, job: &Job<'_>) -> Result<Done, Refusal> {
        let node = job.collapse.node();
        let beyond = node.ends_before(self.platform(), job.pages().end - 1);
        let survey = self.files().survey_block(self.platform(), node, job.first);
        job.terms.pages(node.kind(), beyond, &survey)?;
        let in_order = survey.in_order.is_some();
        if !in_order {
            let zeroes = survey.present < BLOCK_FRAMES && !matches!(node.kind(), FileKind::Paged(_));
            self.check_mappers(job, zeroes)?;
            self.gather(job, &survey)?;
        }
        self.put_file_leaf(job)?;
        self.make_way(node, job.pages());
        let stat = if in_order { Stat::ThpCollapseShape } else { Stat::ThpCollapseFile };
        self.pages().count(stat, 1);
        Ok(if in_order { Done::Reshaped } else { Done::Copied })
    }

    /// Refuses pages of which one is marked for a handler before any page moves: else the others would move
    /// at each attempt. With `zeroes`, holes get pages of zeroes, so it also refuses pages whose holes a
    /// handler of any mapping fills: the handler would never hear of them. The file notes handlers that are
    /// registered later ([`FileNode::note_watched`]).
    fn check_mappers(self, job: &Job<'_>, zeroes: bool) -> Result<(), Refusal> {
        let (mut marked, mut watched) = (false, false);
        ReverseMap::of(self.0).each_mapper(job.collapse.node(), &job.pages(), |found| {
            found.each_part(&job.pages(), |vma, range| {
                marked |= found.has_marked(range);
                watched |= zeroes && vma.attributes.handler.catches(UserfaultModes::MISSING);
            });
        });
        match (marked, watched) {
            (true, _) => Err(Refusal::Held),
            (_, true) => Err(Refusal::Watched),
            _ => Ok(()),
        }
    }

    /// Moves the pages into a block of their own.
    fn gather(self, job: &Job<'_>, survey: &BlockSurvey) -> Result<(), Refusal> {
        let target = self.collapse_target(survey.first, survey.present < BLOCK_FRAMES / 2).ok();
        let reserved =
            target.and_then(|(folio, contents)| Some((self.pages().reserve_block(folio)?, contents)));
        let Some((mut block, contents)) = reserved else {
            self.pages().count(Stat::ThpCollapseAllocFailed, 1);
            return Err(Refusal::NoMemory);
        };
        self.pages().count(Stat::ThpCollapseAlloc, 1);
        // A page that is dropped after the survey ends the collapse.
        let complete = survey.present == BLOCK_FRAMES;
        let brought = if complete { Ok(()) } else { self.bring_missing(job, &mut block, contents) };
        let done = brought.and_then(|()| self.fill_block(job, &mut block));
        self.pages().store().free_reserved(block);
        done
    }

    /// Brings in the missing pages, with reschedule points: no lock is held, and no page is busy.
    fn bring_missing(
        self,
        job: &Job<'_>,
        block: &mut BlockReservation,
        contents: Contents,
    ) -> Result<(), Refusal> {
        for index in job.pages() {
            // Skip pages that are there: lost ones are refused later.
            if self.files().is_lost(self.platform(), job.collapse.node(), index).is_none() {
                self.bring_in(job, index, block, contents)?;
            }
            if (index + 1) % COLLAPSE_FILE_PAGES as u64 == 0 {
                self.platform().reschedule_point();
            }
        }
        Ok(())
    }

    fn fill_block(self, job: &Job<'_>, block: &mut BlockReservation) -> Result<(), Refusal> {
        let copier = self.pages().frames().clearer().copier(self.platform(), BLOCK_SIZE, TouchHint::Later);
        for start in job.pages().step_by(COLLAPSE_FILE_PAGES) {
            self.gather_some(job, start, block, &copier)?;
            self.platform().reschedule_point();
        }
        Ok(())
    }

    /// Brings in a missing page: from the backing store, into any frame; or zeroes, into the block.
    fn bring_in(
        self,
        job: &Job<'_>,
        index: u64,
        block: &mut BlockReservation,
        contents: Contents,
    ) -> Result<(), Refusal> {
        let file = self.use_of(job.collapse.node())?;
        if matches!(file.node().kind(), FileKind::Paged(_)) {
            let page = self.files().page(self.pages(), &file, index);
            return page.map(drop).map_err(|error| match error {
                FaultError::OutOfMemory => Refusal::NoMemory,
                FaultError::BeyondEnd => Refusal::Beyond,
                FaultError::Poisoned => Refusal::Lost,
                _ => Refusal::Io,
            });
        }
        if contents == Contents::Unknown {
            let frame = FrameRange::folio(block.frame(index), Order::FRAME);
            // SAFETY: invariant 1: this collapse reserved the block; `fill_hole` takes the frame afterwards.
            unsafe { self.pages().frames().clear_frames(frame, TouchHint::Later) };
        }
        Ok(self.files().fill_hole(self.pages(), &file, index, block)?)
    }

    fn use_of<'n>(self, node: &'n FileNode) -> Result<FileUse<'n>, Refusal> {
        for _ in 0..COLLAPSE_FILE_TRIES {
            if let Some(file) = node.enter() {
                return Ok(file);
            }
            self.platform().relax();
        }
        Err(Refusal::Busy)
    }

    /// Closes the file. Does not wait for its users: one may wait for a pager, and all others would wait too.
    fn close_soon<'n>(self, node: &'n FileNode) -> Result<FileClosed<'n>, Refusal> {
        for _ in 0..COLLAPSE_FILE_TRIES {
            if let Some(closed) = node.try_close() {
                return Ok(closed);
            }
            self.platform().relax();
        }
        Err(Refusal::Busy)
    }

    /// Moves up to [`COLLAPSE_FILE_PAGES`] pages into their frames of the block.
    fn gather_some(
        self,
        job: &Job<'_>,
        start: u64,
        block: &mut BlockReservation,
        copier: &Copier<'_, P>,
    ) -> Result<(), Refusal> {
        let (files, node) = (self.files(), job.collapse.node());
        let part = start..start + COLLAPSE_FILE_PAGES as u64;
        let closed = self.close_soon(node)?;
        let moving = files.begin_gathering(self.platform(), &closed, part.clone(), block)?;
        if moving.is_empty() {
            return Ok(());
        }
        let runs = PageRuns::of(part);
        let locked = Migration::of(self.0).unmap_to_move(&closed, &runs);
        // No task reaches the pages: one that wants a page waits while it is busy.
        drop(closed);
        let ours = !files.is_mapped(self.pages(), &moving);
        if ours {
            self.copy_pages(&moving, copier);
        }
        let moved = files.end_gathering(self.pages(), &job.collapse, &moving, ours.then_some(block));
        if locked {
            // Map locked pages again, with or without a larger leaf, even if that must wait for users of the
            // file: nothing else keeps these pages in memory.
            let closed = self.close_soon(node).unwrap_or_else(|_| node.close(self.platform()));
            Migration::of(self.0).map_locked(&closed, &runs);
        }
        match (ours, moved) {
            (_, true) => Ok(()),
            // A frame of the block went bad.
            (true, false) => Err(Refusal::Busy),
            // A leaf stayed: a handler watches its stores, or it is locked and cannot be split for want of
            // memory.
            (false, false) => Err(Refusal::Held),
        }
    }

    fn copy_pages(self, moving: &PagesMoving, copier: &Copier<'_, P>) {
        for (from, to) in moving.runs() {
            for at in (0..from.count).step_by(STRETCH) {
                let part = FrameRange::new(from.start.add(at), (from.count - at).min(STRETCH as u64));
                // SAFETY: invariant 1: this collapse reserved the block, and the new frames are still in it.
                unsafe { copier.copy(part, to.add(at)) };
            }
            self.pages().count(Stat::ThpCollapsePages, from.count);
        }
    }

    /// Puts the large leaf into the caller's address space.
    fn put_file_leaf(self, job: &Job<'_>) -> Result<(), Refusal> {
        for _ in 0..COLLAPSE_FILE_TRIES {
            let space = job.body.space.write(self.platform());
            // A task that has closed the file may wait for this lock, so give it back.
            let Some(file) = job.collapse.node().enter() else {
                drop(space);
                self.platform().relax();
                continue;
            };
            let (vma, mapped, first) = job.terms.file(&space, job.extent, self.policy())?;
            if !core::ptr::eq(mapped.node(), file.node()) || first != job.first {
                return Err(Refusal::Busy);
            }
            return self.map_block(job.body, vma, job.extent, &file, first);
        }
        Err(Refusal::Busy)
    }

    /// Maps the block of the pages from `first` on by one leaf instead of small ones. The lock is held for
    /// writing.
    fn map_block(
        self,
        body: &MmBody,
        vma: &Vma,
        extent: VirtRange,
        file: &FileUse<'_>,
        first: u64,
    ) -> Result<(), Refusal> {
        let survey = self.files().survey_block(self.platform(), file.node(), first);
        let block = survey.in_order.ok_or(Refusal::Busy)?;
        let writable = vma.may_map_block(extent).ok_or(Refusal::Busy)?;
        let tables = body.tables(self.pages());
        if self.is_large_file(body, extent)? {
            return Ok(());
        }
        tables.prepare(extent.start, PageSize::Size2M).map_err(|_| Refusal::NoMemory)?;
        let mut gather = MmuGather::new(self.pages(), &body.context);
        let done = tables.unmap(&Zap::tables(extent, extent), &mut gather);
        debug_assert_eq!(done, Ok(()), "no leaf reaches over the ends");
        gather.flush();
        let flags = leaf_flags(&vma.attributes, writable);
        // SAFETY: invariant 1: the page cache holds the pages of the block.
        let mapped = unsafe { tables.map_large(extent.start, block, PageSize::Size2M, flags) };
        let mut change = gather.finish();
        if mapped.is_ok() {
            change.file += BLOCK_FRAMES as i64;
        }
        body.add_rss(self.pages(), change, file.node().kind().into());
        mapped.map_err(|_| Refusal::Busy)
    }

    /// Whether one leaf maps 2 MiB of a file already; refuses small leaves that must stay. The lock is held.
    fn is_large_file(self, body: &MmBody, extent: VirtRange) -> Result<bool, Refusal> {
        let Some(survey) = self.survey_extent(body, extent)? else { return Ok(true) };
        check_leaves(&survey).map(|()| false)
    }

    /// Unmaps the tables of these pages in all address spaces, where a leaf onto their block may come.
    fn make_way(self, node: &FileNode, pages: Range<u64>) {
        ReverseMap::of(self.0).each_mapper_alone(node, &pages, |found| {
            let tables = found.tables();
            found.each_part(&pages, |vma, range| {
                let Survey::Table(survey) = tables.survey(range.start, &Copied::NOTHING) else { return };
                if vma.may_map_block(range).is_none() || check_leaves(&survey).is_err() {
                    return;
                }
                if vma.attributes.flags.contains(VmaFlags::LOCKED) {
                    if let Some(file) = node.enter() {
                        // If refused, the small leaves stay.
                        let _refused = self.map_block(found.body, vma, range, &file, pages.start);
                    }
                    return;
                }
                let mut gather = MmuGather::new(self.pages(), &found.body.context);
                let done = tables.unmap(&Zap::tables(range, range), &mut gather);
                debug_assert_eq!(done, Ok(()), "no leaf reaches over the ends");
                found.body.add_rss(self.pages(), gather.finish(), node.kind().into());
            });
        });
    }
}

/// Refuses a table that maps more than pages of a file, or whose leaves say what a larger one cannot.
fn check_leaves(survey: &TableSurvey) -> Result<(), Refusal> {
    refuse_if(survey.lost > 0, Refusal::Lost)?;
    refuse_if(survey.busy > 0, Refusal::Busy)?;
    refuse_if(survey.marked > 0, Refusal::Marked)?;
    refuse_if(survey.present != survey.file || survey.zero > 0, Refusal::Copies)
}
