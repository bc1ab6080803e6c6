//! Collapse of private anonymous memory, by copy.
//!
//! # Protocol
//!
//! The collapse allocates the new folio first, holding no lock. Then it makes at most [`COLLAPSE_ROUNDS`]
//! rounds. Each takes the address space's lock for *writing*, checks mapping and leaves anew, and unshares
//! tables that `fork` shared. If more than [`COLLAPSE_RECOPIED`] pages are still to be copied, it clears the
//! leaves' dirty bits, with a flush. Then it takes the lock for *reading* instead, and copies pages while
//! programs load, store and fault as before. Once few pages are left, it detaches the table, with a flush,
//! copies these, and installs the large leaf (`pgtable/collapse_copy.rs` has the steps).
//!
//! So a task waits at most for two looks at 512 entries, a flush, and the copy of the last pages. In case a
//! program stores too fast for that, the last round copies with the lock held for writing: even this delays
//! no task that only touches mapped memory.
//!
//! A copy is good as long as no other task took the lock for writing since, which the lock's number of
//! writers tells, and as long as the page's dirty bit stays clear; else the page is copied again. Stores take
//! no lock, so each must set the dirty bit. A secondary MMU does: it drops its copies of leaves at each
//! flush, and calls [`Mm::fault`](crate::vm::Mm::fault) before it stores.
//!
//! Pages that other address spaces map too are copied for this one alone: no task can store to them, and a
//! task that gains the right sets the dirty bit. Frames with another owner are refused: a device stores to
//! them without asking.

use super::limits::Terms;
use super::report::{Done, Refusal};
use crate::addr::{Frame, FrameRange, Order, VirtRange};
use crate::arch::EntryFlags;
use crate::clear::Copier;
use crate::limits::{
    BLOCK_SIZE, CLEAR_STRETCH_BYTES, COLLAPSE_RECOPIED, COLLAPSE_ROUNDS, FRAME_SIZE, TABLE_ENTRIES,
};
use crate::page_alloc::{Contents, Folio, Gfp, Origin};
use crate::pgtable::{Copied, PageTables, Run, Survey, TableSurvey};
use crate::platform::{Platform, TouchHint};
use crate::stats::Stat;
use crate::tlb::MmuGather;
use crate::vm::fault::flags::leaf_flags;
use crate::vm::handle::handle;
use crate::vm::memory_failure::lose::MemoryLoss;
use crate::vm::migrate::relocate::Migration;
use crate::vm::space::body::MmBody;
use crate::vm::space::rss::Counted;
use crate::vm::space::shared::MmShared;
use crate::vm::space::state::Space;

/// Frames that are copied without a reschedule point, at most.
pub(super) const STRETCH: usize = (CLEAR_STRETCH_BYTES / FRAME_SIZE) as usize;

struct Job<'a, P: Platform> {
    body: &'a MmBody,
    extent: VirtRange,
    terms: &'a Terms,
    /// The new folio.
    to: Frame,
    copier: Copier<'a, P>,
    copied: Copied,
}

handle! {
    /// Makes one leaf of an extent of 2 MiB.
    Collapse of MmShared
}

impl<P: Platform> Collapse<'_, '_, P> {
    /// Makes one leaf of an aligned range of 2 MiB of an address space. The caller holds no lock.
    pub(super) fn collapse_extent(
        self,
        body: &MmBody,
        extent: VirtRange,
        terms: &Terms,
    ) -> Result<Done, Refusal> {
        let space = body.space.read(self.platform());
        if terms.is_of_file(&space, extent) {
            drop(space);
            return self.collapse_file(body, extent, terms);
        }
        let vma = terms.mapping(&space, extent, self.policy())?;
        let Some(survey) = self.survey_extent(body, extent)? else { return Ok(Done::Large) };
        terms.leaves(vma, &survey)?;
        drop(space);
        if survey.in_order && self.collapse_shape(body, extent, terms)? {
            return Ok(Done::Reshaped);
        }
        self.collapse_by_copy(body, extent, terms, &survey)
    }

    /// Surveys 2 MiB, unless one leaf maps them. The lock is held; if for reading, the answer may be old.
    pub(super) fn survey_extent(
        self,
        body: &MmBody,
        extent: VirtRange,
    ) -> Result<Option<TableSurvey>, Refusal> {
        match body.tables(self.pages()).survey(extent.start, &Copied::NOTHING) {
            Survey::Large => Ok(None),
            Survey::Nothing(_) => Ok(Some(TableSurvey::default())),
            Survey::Table(survey) => Ok(Some(survey)),
            Survey::Lost => Err(Refusal::Lost),
            Survey::Busy => Err(Refusal::Busy),
        }
    }

    /// Makes one leaf of leaves, if they map one folio in order; returns whether they did.
    fn collapse_shape(self, body: &MmBody, extent: VirtRange, terms: &Terms) -> Result<bool, Refusal> {
        let space = body.space.write(self.platform());
        terms.mapping(&space, extent, self.policy())?;
        let tables = body.tables(self.pages());
        let done = tables.collapse(extent.start).map_err(|_| Refusal::NoMemory)?;
        self.pages().count(Stat::ThpCollapseShape, u64::from(done));
        Ok(done)
    }

    fn collapse_by_copy(
        self,
        body: &MmBody,
        extent: VirtRange,
        terms: &Terms,
        survey: &TableSurvey,
    ) -> Result<Done, Refusal> {
        let pages = self.pages();
        let Ok((folio, contents)) = self.collapse_target(survey.first, survey.holes() > TABLE_ENTRIES / 2)
        else {
            pages.count(Stat::ThpCollapseAllocFailed, 1);
            return Err(Refusal::NoMemory);
        };
        pages.count(Stat::ThpCollapseAlloc, 1);
        let copied = if contents == Contents::Zeroed { Copied::ZEROES } else { Copied::NOTHING };
        let copier = pages.frames().clearer().copier(self.platform(), BLOCK_SIZE, TouchHint::Later);
        let to = folio.frame();
        let mut job = Job { body, extent, terms, to, copier, copied };
        if let Err(why) = self.bring_over(&mut job) {
            self.give_up(folio);
            return Err(why);
        }
        // The leaf owns it.
        let _ = folio.into_raw();
        pages.count(Stat::ThpCollapseCopied, 1);
        if pages.frames().has_bad(to) {
            MemoryLoss::of(self.0).lose_marked(FrameRange::folio(to, Order::BLOCK));
        }
        Ok(Done::Copied)
    }

    /// Allocates a folio for the copies, on the node of the first page; moves other pages out of its way if
    /// need be.
    pub(super) fn collapse_target(
        self,
        first: Option<Frame>,
        mostly_holes: bool,
    ) -> Result<(Folio, Contents), Refusal> {
        let pages = self.pages();
        let gfp = match first {
            Some(frame) if pages.requests().node_count() > 1 => {
                Gfp::USER.on_node(pages.store().node_of_frame(frame))
            }
            _ => Gfp::USER,
        };
        let unknown = |folio| (folio, Contents::Unknown);
        let found = if mostly_holes {
            pages.alloc_maybe_zeroed(gfp, Order::BLOCK)
        } else {
            pages.alloc(gfp, Order::BLOCK).map(unknown)
        };
        let move_out = |range| {
            Migration::of(self.0).move_out(range);
        };
        let found = found.or_else(|_| pages.alloc_moving(gfp, Order::BLOCK, move_out).map(unknown));
        found.map_err(|_| Refusal::NoMemory)
    }

    fn bring_over(self, job: &mut Job<'_, P>) -> Result<(), Refusal> {
        let (mut expected, mut round) = (None, 1);
        loop {
            let space = job.body.space.write(self.platform());
            if expected.is_some_and(|number| number != space.writes()) {
                job.copied = Copied::NOTHING;
            }
            let survey = self.prepare_round(job, &space)?;
            self.pages().count(Stat::ThpCollapseRounds, 1);
            let tables = job.body.tables(self.pages());
            let last = round == COLLAPSE_ROUNDS;
            if survey.missing > COLLAPSE_RECOPIED {
                tables.begin_copies(job.extent.start, &mut job.copied);
                if !last {
                    let number = space.writes();
                    drop(space);
                    let space = job.body.space.read(self.platform());
                    if space.writes() == number {
                        self.copy_clean(job, &tables);
                    }
                    (expected, round) = (Some(number.wrapping_add(1)), round + 1);
                    continue;
                }
                self.copy_clean(job, &tables);
            }
            let mut gather = MmuGather::new(self.pages(), &job.body.context);
            let put = self.put_leaf(job, &space, &mut gather);
            drop(space);
            // The old table is detached and flushed: no CPU reaches its pages.
            let change = gather.finish();
            if put.is_ok() {
                job.body.add_rss(self.pages(), change, Counted::File);
                job.body.add_anon(self.pages(), TABLE_ENTRIES as i64);
            }
            return put;
        }
    }

    /// Checks mapping and leaves anew, and unshares the table. The caller holds the lock for writing.
    fn prepare_round(self, job: &Job<'_, P>, space: &Space) -> Result<TableSurvey, Refusal> {
        let vma = job.terms.mapping(space, job.extent, self.policy())?;
        let tables = job.body.tables(self.pages());
        // Leaves are checked before the table is unshared: in a shared table all pages count as shared.
        let survey = |tables: &PageTables<'_, '_, P>| match tables.survey(job.extent.start, &job.copied) {
            Survey::Table(survey) => Ok(survey),
            _ => Err(Refusal::Busy),
        };
        let before = survey(&tables)?;
        job.terms.leaves(vma, &before)?;
        if !tables.is_shared(job.extent.start) {
            return Ok(before);
        }
        tables.unshare(job.extent).map_err(|_| Refusal::NoMemory)?;
        survey(&tables)
    }

    /// Copies the clean pages that are still to be copied. The caller holds the lock, at least for reading.
    fn copy_clean(self, job: &mut Job<'_, P>, tables: &PageTables<'_, '_, P>) {
        let (to, copier, mut left) = (job.to, &job.copier, STRETCH);
        let pages = tables.bring_pages(job.extent.start, &mut job.copied, |run| {
            let mut at = 0;
            while at < run.count {
                let count = left.min(run.count - at);
                self.bring(copier, to, &run, at, count);
                (at, left) = (at + count, left - count);
                if left == 0 {
                    self.platform().reschedule_point();
                    left = STRETCH;
                }
            }
        });
        self.pages().count(Stat::ThpCollapsePages, pages);
    }

    /// Copies the last pages and installs the large leaf. The caller holds the lock for writing.
    fn put_leaf(
        self,
        job: &mut Job<'_, P>,
        space: &Space,
        gather: &mut MmuGather<'_, '_, P>,
    ) -> Result<(), Refusal> {
        let vma = job.terms.mapping(space, job.extent, self.policy())?;
        let start = job.extent.start;
        let flags = leaf_flags(&vma.attributes, true).union(EntryFlags::ANON);
        self.pages()
            .frames()
            .set_whole_origin(job.to, Origin::new(job.body.family, vma.attributes.origin_of(start)));
        let (to, copier) = (job.to, &job.copier);
        let tables = job.body.tables(self.pages());
        // SAFETY: invariant 1: the collapse owns the folio, and gives its value up once the leaf is there.
        let again = unsafe {
            tables.put_leaf(start, to, flags, &mut job.copied, gather, |run| {
                for at in (0..run.count).step_by(STRETCH) {
                    self.bring(copier, to, &run, at, STRETCH.min(run.count - at));
                }
            })
        };
        self.pages().count(Stat::ThpCollapseRecopied, again.unwrap_or(0));
        again.map(|_| ()).ok_or(Refusal::Busy)
    }

    /// Copies or clears a part of a run in the new folio.
    fn bring(self, copier: &Copier<'_, P>, to: Frame, run: &Run, at: usize, count: usize) {
        let to = FrameRange::new(to.add((run.index + at) as u64), count as u64);
        // SAFETY: invariant 1: the collapse owns the new folio until its leaf is there.
        unsafe {
            match run.from {
                Some(from) => copier.copy(FrameRange::new(from.add(at as u64), count as u64), to.start),
                None => self.pages().frames().clear_frames(to, TouchHint::Later),
            }
        }
    }
}
