//! Moves memory that is in use to other frames, wherever it is mapped.
//!
//! # Protocol
//!
//! *Anonymous folios.* Folios of a block move together, so many as have [`MOVE_LEAVES`] frames. They are set
//! aside first: held, so they are not freed. A fault gives the right to store only to a page that one leaf
//! maps and that is not held, so from then on no leaf of the folios gains it. A leaf that has the right is
//! therefore the page's only one; where a page has several, no task can store to it. Each address space of
//! their families is visited once, in ascending order, under its lock for *writing*: no fault, no page-table
//! walk and no other visit runs in it meanwhile. Tables that it shares become its own. Its leaves of all
//! these folios are made busy, flushed, copied and filled, up to [`MOVE_LEAVES`] with one flush, with a
//! reschedule point after each stretch of copies. A task that wants the memory meanwhile waits for the lock,
//! never for a busy leaf. A page is copied when the first of its leaves is busy and flushed: if that leaf is
//! the only one, no task can store any more, and if there are several, none could before. Later leaves map
//! the same copy. In between, some address spaces map the old frames and others the new ones, with the same
//! bytes in both. A store to either is a copy as after any fork.
//!
//! Nothing is missed, by the argument of [`crate::vm::rmap::reverse`]: a fork holds its parent's lock, and
//! the child's number is larger. One leaf can escape: a fault has counted it and not yet put it in. Then the
//! old frame keeps its count and stays, and the move reports busy. A task that reads a page to copy it holds
//! its address space's lock, and its own leaf keeps the old frame as long.
//!
//! Pages of files: [`cached`](super::cached).
//!
//! (Linux: `mm/migrate.c`, whose markers for faults to wait at are the address space's lock here.)

use core::ops::Range;

use crate::addr::{BlockNumber, Frame, FrameRange, Order, PageSize, VirtRange};
use crate::clear::Copier;
use crate::error::{MigrateError, SplitError};
use crate::limits::{BLOCK_FRAMES, BLOCK_SIZE, CLEAR_STRETCH_BYTES, FRAME_SIZE, MOVE_LEAVES};
use crate::memmap::FrameMask;
use crate::page_alloc::{Gfp, NodePolicy, Origin};
use crate::pgtable::{PageTables, Relocation};
use crate::platform::{Platform, TouchHint};
use crate::stats::Stat;
use crate::tlb::MmuGather;
use crate::vm::handle::handle;
use crate::vm::memory_failure::lose::MemoryLoss;
use crate::vm::migrate::huge::{HugeMigration, HugeMove};
use crate::vm::rmap::reverse::{ReverseMap, place_in};
use crate::vm::space::body::MmBody;
use crate::vm::space::found::FoundBody;
use crate::vm::space::shared::MmShared;
use crate::vm::space::state::Space;

/// The most frames that are copied without a reschedule point.
pub(super) const STRETCH: usize = (CLEAR_STRETCH_BYTES / FRAME_SIZE) as usize;

/// A folio that is set aside, and the folio of the same size that replaces it.
#[derive(Clone, Copy)]
struct Moving {
    source: FrameRange,
    origin: Origin,
    target: Frame,
}

impl Moving {
    const NONE: Self = Self { source: FrameRange::new(Frame(0), 0), origin: Origin::NONE, target: Frame(0) };

    /// The frames that it moves to.
    fn room(&self) -> FrameRange {
        FrameRange::new(self.target, self.source.count)
    }
}

/// Folios of one block that move together.
struct Job<'a, P: Platform> {
    folios: &'a [Moving],
    /// Uses the copy kernel for the size of all of them.
    copier: Copier<'a, P>,
    /// The frames of the block that were copied.
    copied: FrameMask,
    /// Frames copied since the last reschedule point.
    since: usize,
}

/// Frames that became free, and why others did not.
type Freed = (u64, Option<MigrateError>);

handle! { Migration of MmShared }

impl<P: Platform> Migration<'_, '_, P> {
    /// Moves the anonymous folio of at most order 9 around `frame`, the page of a file in it, or the page of a
    /// pool around it, to frames of these nodes, preferably of its own if there are none. Returns
    /// how many frames became free. The caller holds no lock.
    ///
    /// # Errors
    /// [`MigrateError`]. Programs see no difference; leaves of a file may be missing until the next access.
    pub(crate) fn migrate_to(self, frame: Frame, nodes: Option<NodePolicy>) -> Result<u64, MigrateError> {
        let one = FrameRange::folio(frame, Order::FRAME);
        let start = self.pages().frames().folio_start(frame).unwrap_or(frame);
        let number = start.block();
        if let Some(page) = HugeMigration::of(self.0).page_at(frame) {
            // A page that must leave its frames takes none of the pool: those may have to go too.
            let how = HugeMove { nodes: self.near(frame, nodes), pooled: nodes.is_some(), bad: None };
            return HugeMigration::of(self.0).move_page(page, how);
        }
        let at = start.index_in_block();
        if self.pages().frames().next_movable(number, at) == Some(start) {
            return match self.move_folios(number, at..at + 1, nodes) {
                (_, Some(error)) => Err(error),
                (0, None) => Err(MigrateError::NotMovable),
                (freed, None) => Ok(freed),
            };
        }
        if self.pages().memmap().get(number).is_none() || !self.pages().frames().holds_any(one) {
            return Err(MigrateError::NotMovable);
        }
        self.move_cached(one, nodes)
    }

    /// The nodes to move to.
    fn near(self, frame: Frame, nodes: Option<NodePolicy>) -> NodePolicy {
        nodes.unwrap_or_else(|| NodePolicy::Preferred(self.pages().store().node_of_frame(frame)))
    }

    /// Moves what it can out of these frames, with a reschedule point after each folio. Returns the frames
    /// freed.
    pub(crate) fn move_out(self, range: FrameRange) -> u64 {
        let mut moved = 0;
        for piece in range.by_block() {
            if self.pages().memmap().get_around(piece.start).is_some() {
                moved += self.move_block(piece.start.block());
            }
            if self.platform().is_dying() {
                return moved;
            }
        }
        if self.pages().frames().holds_any(range) {
            moved += self.move_cached(range, None).unwrap_or(0);
        }
        moved
    }

    fn move_block(self, number: BlockNumber) -> u64 {
        if self.pages().frames().is_huge(number.first_frame(), Order::BLOCK) {
            return self.migrate_to(number.first_frame(), None).unwrap_or(0);
        }
        self.move_folios(number, 0..BLOCK_FRAMES, None).0
    }

    /// Moves the folios of a block that start in these places, a batch of [`MOVE_LEAVES`] frames, or of one
    /// more folio, between two reschedule points. Goes on after one that is in use, but not without memory.
    fn move_folios(self, number: BlockNumber, mut starts: Range<usize>, nodes: Option<NodePolicy>) -> Freed {
        let (mut freed, mut failed) = (0, None);
        while !starts.is_empty() && failed != Some(MigrateError::OutOfMemory) {
            let (mut folios, mut count, mut frames) = ([Moving::NONE; MOVE_LEAVES], 0, 0);
            let set_aside = |source: FrameRange, origin| {
                folios[count] = Moving { source, origin, ..Moving::NONE };
                (count, frames) = (count + 1, frames + source.count);
                frames < MOVE_LEAVES as u64
            };
            starts.start = self.pages().frames().set_aside_some(number, starts.clone(), set_aside);
            if count == 0 {
                break;
            }
            let ready = self.take_targets(&mut folios[..count], nodes);
            let (ready, short) = folios[..count].split_at(ready);
            // SAFETY: invariant 1: `set_aside_some` held these folios for this task.
            unsafe { self.pages().counts().release_runs(short.iter().map(|folio| folio.source)) };
            let (some, error) = match short.first() {
                Some(&Moving { source, .. }) if ready.is_empty() => {
                    starts.start = source.start.index_in_block() + source.count as usize;
                    self.move_in_pieces(source, nodes)
                }
                first => {
                    // Try the first of them again, by itself.
                    first.inspect(|short| starts.start = short.source.start.index_in_block());
                    self.move_together(ready)
                }
            };
            (freed, failed) = (freed + some, error.or(failed));
            if self.platform().is_dying() {
                break;
            }
            self.platform().reschedule_point();
        }
        (freed, failed)
    }

    /// Allocates and holds the folios that replace these, as far as there is memory; returns for how many.
    fn take_targets(self, folios: &mut [Moving], nodes: Option<NodePolicy>) -> usize {
        let pages = self.pages();
        for (at, folio) in folios.iter_mut().enumerate() {
            let gfp = Gfp::USER.from_nodes(self.near(folio.source.start, nodes));
            let Some(order) = Order::new(folio.source.count.trailing_zeros() as u8) else { return at };
            let target = pages.alloc(gfp, order);
            // Before the hold, since the origin tells what a held frame is.
            let target = target.and_then(|target| pages.requests().with_origin(target, folio.origin));
            let Ok(target) = target else { return at };
            folio.target = target.into_raw();
            pages.frames().hold(folio.room());
        }
        folios.len()
    }

    /// Moves folios of one block that are set aside, and have their targets.
    fn move_together(self, folios: &[Moving]) -> Freed {
        let pages = self.pages();
        let frames = folios.iter().map(|folio| folio.source.count).sum::<u64>();
        let bytes = frames * FRAME_SIZE;
        let copier = pages.frames().clearer().copier(self.platform(), bytes, TouchHint::Unknown);
        let mut job = Job { folios, copier, copied: FrameMask::EMPTY, since: 0 };
        let done = self.move_everywhere(&mut job);
        // This frees the target frames that were not needed and the source frames that no leaf maps any more.
        // SAFETY: invariant 1: this task held the old and the new folio of each, the old by `set_aside_some`;
        // leaves own what is mapped of them.
        let freed = unsafe {
            pages.counts().release_runs(folios.iter().map(Moving::room));
            pages.counts().release_runs(folios.iter().map(|folio| folio.source))
        };
        let large = folios.first().filter(|folio| folio.source.count == Order::BLOCK.frames());
        large.filter(|folio| pages.frames().has_bad(folio.target)).inspect(|folio| {
            MemoryLoss::of(self.0).lose_marked(folio.room());
        });
        let all = freed == frames;
        pages.count(Stat::PgmigrateSuccess, freed);
        pages.count(Stat::PgmigrateFail, frames - freed);
        pages.count(Stat::ThpMigrationSuccess, u64::from(all && large.is_some()));
        (freed, if all { None } else { Some(done.err().unwrap_or(MigrateError::Busy)) })
    }

    /// Moves a folio frame by frame, since no target of its size could be allocated.
    fn move_in_pieces(self, folio: FrameRange, nodes: Option<NodePolicy>) -> Freed {
        if folio.count == 1 {
            return (0, Some(MigrateError::OutOfMemory));
        }
        match ReverseMap::of(self.0).split_folio(folio.start, Order::FRAME) {
            Ok(unmapped) => {
                self.pages().count(Stat::ThpMigrationSplit, 1);
                let first = folio.start.index_in_block();
                let starts = first..first + folio.count as usize;
                let (freed, failed) = self.move_folios(folio.start.block(), starts, nodes);
                (unmapped + freed, failed)
            }
            Err(SplitError::NotAFolio) => (0, Some(MigrateError::NotMovable)),
            Err(SplitError::InUse) => (0, Some(MigrateError::Busy)),
            Err(SplitError::OutOfMemory) => (0, Some(MigrateError::OutOfMemory)),
        }
    }

    fn move_everywhere(self, job: &mut Job<'_, P>) -> Result<(), MigrateError> {
        let family = |folio: &Moving| folio.origin.family();
        for (at, folio) in job.folios.iter().enumerate() {
            if job.folios[..at].iter().any(|earlier| family(earlier) == family(folio)) {
                continue;
            }
            let mut after = 0;
            while let Some(body) = FoundBody::next_of_family(self.0, family(folio), after) {
                after = body.mapper.number();
                let space = body.space.write(self.platform());
                self.move_in(&body, &space, family(folio), job)?;
            }
        }
        Ok(())
    }

    /// Makes an address space's leaves of its family's folios map the new frames, under its lock for writing.
    fn move_in(
        self,
        body: &MmBody,
        space: &Space,
        family: u64,
        job: &mut Job<'_, P>,
    ) -> Result<(), MigrateError> {
        let tables = body.tables(self.pages());
        let (mut batch, mut count) = ([const { None }; MOVE_LEAVES], 0);
        for folio in job.folios.iter().filter(|folio| folio.origin.family() == family) {
            let mut at = 0;
            while at < folio.source.count {
                let origin = folio.origin.addr().add(at * FRAME_SIZE);
                let place = place_in(space, &tables, folio.source.start.add(at), origin);
                let Some(addr) = place else {
                    at += 1;
                    continue;
                };
                let found = tables.lookup(addr);
                if found.shared {
                    let table = VirtRange::from_len(addr.align_down(BLOCK_SIZE), BLOCK_SIZE);
                    tables.unshare(table).map_err(|_| MigrateError::OutOfMemory)?;
                    continue;
                }
                let size = found.leaf_size().unwrap_or(PageSize::Size4K);
                let leaf = Relocation::new(addr, found.entry, folio.target.add(at));
                at += size.frames();
                if size > PageSize::Size4K {
                    self.move_leaves(&tables, size, &mut [Some(leaf)], job)?;
                    continue;
                }
                batch[count] = Some(leaf);
                count += 1;
                if count == MOVE_LEAVES {
                    self.move_leaves(&tables, PageSize::Size4K, &mut batch, job)?;
                    count = 0;
                }
            }
        }
        if count == 0 {
            Ok(())
        } else {
            self.move_leaves(&tables, PageSize::Size4K, &mut batch[..count], job)
        }
    }

    fn move_leaves(
        self,
        tables: &PageTables<'_, '_, P>,
        size: PageSize,
        leaves: &mut [Option<Relocation>],
        job: &mut Job<'_, P>,
    ) -> Result<(), MigrateError> {
        let mut gather = MmuGather::new(self.pages(), tables.context());
        // SAFETY: invariant 1: this task holds the new folios.
        let done =
            unsafe { tables.relocate(leaves, size, &mut gather, |leaf| self.copy_once(job, leaf, size)) };
        // Resident memory is unchanged, so the result is dropped.
        gather.finish();
        done.map(|_| ()).map_err(|_| MigrateError::OutOfMemory)
    }

    /// Copies the frames behind an old leaf to those of the new one, unless they were copied before. The
    /// address space's lock is held for writing, so no task waits for the busy leaf, and a reschedule is
    /// fine.
    fn copy_once(self, job: &mut Job<'_, P>, leaf: &Relocation, size: PageSize) {
        let source = leaf.leaf.frame();
        let first = source.index_in_block();
        let wanted = FrameMask::run(first, size.frames() as usize).without(job.copied);
        for (start, count) in wanted.runs() {
            for at in (start..start + count).step_by(STRETCH) {
                let frames = STRETCH.min(start + count - at);
                if job.since + frames > STRETCH {
                    self.platform().reschedule_point();
                    job.since = 0;
                }
                let behind = (at - first) as u64;
                let from = FrameRange::new(source.add(behind), frames as u64);
                // SAFETY: invariant 1: this task holds the new folio, the leaves onto which are busy.
                unsafe { job.copier.copy(from, leaf.to.add(behind)) };
                job.since += frames;
            }
        }
        job.copied = job.copied.union(wanted);
    }
}
