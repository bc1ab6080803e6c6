//! Copying leaves into another address space, for `fork`.

use super::PageTables;
use super::lock::LockedTable;
use super::walk::TableRange;
use crate::addr::{FrameRange, PageSize, VirtRange};
use crate::arch::{Entry, EntryFlags, Level};
use crate::error::{AllocError, MapError};
use crate::page_alloc::CountError;
use crate::platform::TablePlatform;
use crate::tlb::words::Table;
use crate::tlb::{FlushBatch, RssChange};

/// Which side keeps the right to store when leaves are copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyMode {
    /// Neither: a private mapping, copied on the next store.
    Private,
    /// Both: a shared mapping.
    Shared,
    /// As [`Self::Private`]; the copies keep a handler's marks, because the child has the same handler.
    PrivateMarked,
    /// As [`Self::Shared`]; the copies keep a handler's marks.
    SharedMarked,
}

impl CopyMode {
    pub(super) const fn is_private(self) -> bool {
        matches!(self, Self::Private | Self::PrivateMarked)
    }

    /// The bits that a copy lacks, if its leaf is shared or does not allow stores.
    const fn lost(self) -> EntryFlags {
        match self {
            Self::Private => EntryFlags::UFFD_WP,
            Self::Shared => EntryFlags::DIRTY.union(EntryFlags::UFFD_WP),
            Self::PrivateMarked => EntryFlags::NONE,
            Self::SharedMarked => EntryFlags::DIRTY,
        }
    }
}

struct Copied<'c> {
    mode: CopyMode,
    owed: &'c mut FlushBatch,
    rss: &'c mut RssChange,
}

impl<'p, P: TablePlatform> PageTables<'_, 'p, P> {
    /// Copies every leaf of the range to the same address of `child`, which maps nothing there. For private
    /// mappings the caller owes a flush of `self`, also after an error; `rss` grows by what the child got.
    /// The range covers each large leaf entirely or not at all. Exclusive on both sides.
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
        owed.owe_for(self.context);
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
            } else if step.table.load(step.indices().start).is_poison() {
                let target = child.ensure(step.range.start, step.table.level())?;
                child.lock(target).fill(step.indices().start, Entry::POISON);
            }
        }
        Ok(())
    }

    /// Copies the entries of a lowest-level table from `first` on.
    fn copy_leaves(
        &self,
        step: &TableRange<'p>,
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
            to.inherit_kinds(&from);
            let counted = self.copy_runs(&from, &to, &mut at, end, copied, &mut weakened);
            let Err(CountError::Prepare { at: frame, .. }) = counted else {
                if step.range.len() == Level::PTE.table_bytes() {
                    to.inherit_grain(&from);
                }
                break Ok(());
            };
            drop((to, from));
            if let Err(error) = self.allocator.counts().prepare_counts(frame) {
                break Err(error);
            }
        };
        if weakened {
            copied.owed.add(step.part(begin, at), PageSize::Size4K);
        }
        outcome
    }

    /// Copies runs, each counted in one call, as far as counts are prepared. One counter keeps a block's lock
    /// between neighbouring runs.
    fn copy_runs(
        &self,
        from: &LockedTable<'_, P>,
        to: &LockedTable<'_, P>,
        at: &mut usize,
        end: usize,
        copied: &mut Copied<'_>,
        weakened: &mut bool,
    ) -> Result<(), CountError> {
        let mut counter = self.allocator.counts().counter();
        while *at < end {
            let first = from.load(*at);
            if !first.is_present() {
                if first.is_poison() {
                    to.fill(*at, first);
                }
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

    /// Copies all leaves of a shared table to a new one, which nothing else names.
    pub(super) fn copy_table(
        &self,
        shared: Table<'p>,
        extent: VirtRange,
        target: Table<'p>,
    ) -> Result<(), MapError> {
        let (mut owed, mut rss) = (FlushBatch::new(), RssChange::default());
        let mut copied = Copied { mode: CopyMode::Private, owed: &mut owed, rss: &mut rss };
        let step = TableRange { table: shared, range: extent, shared: true };
        let outcome = self.copy_leaves(&step, target, 0, &mut copied);
        // No CPU could store through the shared table, so none has that right cached.
        owed.forgive();
        Ok(outcome?)
    }

    /// Copies the large leaf of an upper table's entry.
    fn copy_large(
        &self,
        child: &Self,
        step: &TableRange<'p>,
        copied: &mut Copied<'_>,
    ) -> Result<(), MapError> {
        let level = step.table.level();
        let Some(size) = level.leaf_size() else { return Ok(()) };
        debug_assert_eq!(step.range.len(), size.bytes(), "a leaf reaches over the range's end");
        let target = child.ensure(step.range.start, level)?;
        let index = step.indices().start;
        loop {
            let from = self.lock(step.table);
            let to = self.lock_second(target);
            let leaf = from.load(index);
            if let Err(CountError::Prepare { at, .. }) = self.count_leaf(leaf, size) {
                drop((to, from));
                self.allocator.counts().prepare_counts(at)?;
                continue;
            }
            if copy_run(&from, &to, index, 1, copied.mode) {
                copied.owed.add(step.range, size);
            }
            copied.rss.count(leaf, size, 1);
            return Ok(());
        }
    }
}

/// Copies a run of counted leaves; returns whether they lost the right to store. Copies of shared ones are
/// clean.
#[inline]
fn copy_run<P: TablePlatform>(
    from: &LockedTable<'_, P>,
    to: &LockedTable<'_, P>,
    at: usize,
    run: usize,
    mode: CopyMode,
) -> bool {
    debug_assert!(to.all_empty(at, run));
    let (source, target, entries) = (from.table(), to.table(), at..at + run);
    let weakened = mode.is_private() && from.load(at).has(EntryFlags::WRITE);
    if weakened {
        source.copy_weakened(target, entries, |entries| {
            for index in entries {
                let leaf = from.update(index, from.load(index), |leaf| leaf.without(EntryFlags::WRITE));
                target.store(index, leaf.without(EntryFlags::WRITE));
            }
        });
    } else if mode.is_private() {
        // A mark is for its own address space's handler, unless the child has the same one.
        source.copy_to(target, entries, mode.lost());
    } else {
        entries.for_each(|index| target.store(index, from.load(index).without(mode.lost())));
    }
    to.grow(run as i32);
    weakened
}
