//! Copying leaves into another address space, for `fork`.

use super::PageTables;
use super::lock::LockedTable;
use super::walk::Step;
use crate::addr::{FrameRange, PageSize, VirtRange};
use crate::arch::{Entry, EntryFlags, Level};
use crate::error::{AllocError, MapError};
use crate::page_alloc::CountError;
use crate::platform::Platform;
use crate::tlb::words::Table;
use crate::tlb::{FlushBatch, RssChange};

/// What becomes of the right to store when leaves are copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyMode {
    /// Both sides lose it: a private mapping, copied on the next store.
    Private,
    /// Both sides keep it: a shared mapping.
    Shared,
}

/// What a copy has done so far.
struct Copied<'c> {
    mode: CopyMode,
    owed: &'c mut FlushBatch,
    rss: &'c mut RssChange,
}

impl<'p, P: Platform> PageTables<'_, 'p, P> {
    /// Gives `child`, in which nothing is mapped in the range, every leaf that `self` has there, at the same addresses.
    /// Exclusive on both sides. For private mappings a flush of `self` is owed, also after an error; `rss` grows by what
    /// the child got. Large leaves are copied whole, so the range covers each entirely or not at all.
    ///
    /// # Errors
    /// [`MapError::OutOfMemory`]: the child has the leaves of a part of the range.
    pub fn copy(
        &self,
        child: &Self,
        range: VirtRange,
        mode: CopyMode,
        owed: &mut FlushBatch,
        rss: &mut RssChange,
    ) -> Result<(), MapError> {
        self.check(range)?;
        let mut copied = Copied { mode, owed, rss };
        let mut rest = range;
        while !rest.is_empty() {
            let step = self.step(rest);
            rest.start = step.range.end;
            if step.is_lowest() {
                let indices = step.indices();
                let Some(first) = indices.clone().find(|&at| !step.table.load(at).is_empty()) else {
                    continue;
                };
                let target = child.ensure(step.range.start, Level::PTE)?;
                self.copy_leaves(&step, target, first, &mut copied)?;
            } else if step.holds_leaf() {
                self.copy_large(child, &step, &mut copied)?;
            }
        }
        Ok(())
    }

    /// Copies the entries of a lowest-level table from `first` on.
    fn copy_leaves(
        &self,
        step: &Step<'p>,
        target: Table<'p>,
        first: usize,
        copied: &mut Copied<'_>,
    ) -> Result<(), AllocError> {
        let (mut at, end) = (first, step.indices().end);
        let begin = at;
        let mut weakened = false;
        let outcome = loop {
            let from = self.lock(step.table);
            let to = self.lock_second(target);
            let Err(CountError::Prepare { at: frame, .. }) =
                self.copy_runs(&from, &to, &mut at, end, copied, &mut weakened)
            else {
                break Ok(());
            };
            drop((to, from));
            if let Err(error) = self.allocator.prepare_counts(frame) {
                break Err(error);
            }
        };
        if weakened {
            copied.owed.add(step.part(begin, at), PageSize::Size4K);
        }
        outcome
    }

    /// Copies runs, each counted in one go, as far as counts are prepared. One block's lock is held over neighbouring
    /// runs.
    fn copy_runs(
        &self,
        from: &LockedTable<'_, P>,
        to: &LockedTable<'_, P>,
        at: &mut usize,
        end: usize,
        copied: &mut Copied<'_>,
        weakened: &mut bool,
    ) -> Result<(), CountError> {
        let mut counter = self.allocator.counter();
        while *at < end {
            let first = from.load(*at);
            if !first.is_present() {
                *at += 1;
                continue;
            }
            let mut run = from.table().run_length(*at, end, first);
            let mut outcome = Ok(());
            if !first.has(EntryFlags::SPECIAL) {
                outcome = counter.map(FrameRange::new(first.frame(), run as u64));
                if let Err(CountError::Prepare { done, .. }) = outcome {
                    run = done as usize;
                }
            }
            *weakened |= copy_run(from, to, *at, run, copied.mode);
            copied.rss.count(first, PageSize::Size4K, run as i64);
            *at += run;
            outcome?;
        }
        Ok(())
    }

    /// Copies the large leaf of an upper table's entry.
    fn copy_large(&self, child: &Self, step: &Step<'p>, copied: &mut Copied<'_>) -> Result<(), MapError> {
        let level = step.table.level();
        let Some(size) = level.leaf_size() else { return Ok(()) };
        debug_assert_eq!(step.range.len(), size.bytes(), "a leaf reaches over the range's end");
        let target = child.ensure(step.range.start, level)?;
        let index = step.indices().start;
        let from = self.lock(step.table);
        let to = self.lock_second(target);
        let leaf = from.load(index);
        if !leaf.has(EntryFlags::SPECIAL) {
            self.allocator.counter().map_large(leaf.frame(), size);
        }
        if copy_run(&from, &to, index, 1, copied.mode) {
            copied.owed.add(step.range, size);
        }
        copied.rss.count(leaf, size, 1);
        Ok(())
    }
}

/// Copies counted leaves; whether one lost the right to store. The copy of a shared leaf has not been stored through.
#[inline]
fn copy_run<P: Platform>(
    from: &LockedTable<'_, P>,
    to: &LockedTable<'_, P>,
    at: usize,
    run: usize,
    mode: CopyMode,
) -> bool {
    let mut weakened = false;
    for index in at..at + run {
        let leaf = from.load(index);
        let copy = match mode {
            CopyMode::Shared => leaf.without(EntryFlags::DIRTY),
            CopyMode::Private if leaf.has(EntryFlags::WRITE) => {
                weakened = true;
                let before = from.update(index, leaf, |leaf| leaf.without(EntryFlags::WRITE));
                before.without(EntryFlags::WRITE)
            }
            CopyMode::Private => leaf,
        };
        debug_assert_eq!(to.load(index), Entry::EMPTY);
        // A mark is for the handler of the address space that it was set in.
        to.table().store(index, copy.without(EntryFlags::UFFD_WP));
    }
    to.grow(run as i32);
    weakened
}
