//! Splits large leaves into tables of smaller ones.

use super::{FreshTable, PageTables};
use crate::addr::{Frame, FrameRange, PageSize, VirtAddr, VirtRange};
use crate::arch::{Entry, EntryFlags, Level};
use crate::error::MapError;
use crate::limits::{SPLIT_BATCH, TABLE_ENTRIES};
use crate::page_alloc::{Contents, CountError, Gfp};
use crate::platform::TablePlatform;
use crate::stats::Stat;
use crate::tlb::FlushBatch;
use crate::tlb::words::Table;

/// A large leaf to split, and the table that replaces it.
struct LeafSplit<'a, 'p, P: TablePlatform> {
    /// The leaf's first address.
    addr: VirtAddr,
    /// Empty until the leaf is taken out.
    leaf: Entry,
    fresh: FreshTable<'a, 'p, P>,
}

/// Leaves of one table that are split together.
type LeafSplits<'a, 'p, P> = [Option<LeafSplit<'a, 'p, P>>; SPLIT_BATCH];

impl<P: TablePlatform> LeafSplit<'_, '_, P> {
    fn is_taken(&self) -> bool {
        !self.leaf.is_empty()
    }

    /// Writes the small leaves to the new table; the large one has `size`.
    fn fill(&self, size: PageSize) {
        let step = size.frames() / TABLE_ENTRIES as u64;
        let flags = self.leaf.flags().without(EntryFlags::LARGE);
        let small = if size == PageSize::Size1G { PageSize::Size2M } else { PageSize::Size4K };
        self.fresh.fill(|at| Entry::leaf(self.leaf.frame().add(at as u64 * step), small, flags));
    }
}

impl<'p, P: TablePlatform> PageTables<'_, 'p, P> {
    /// Splits large leaves until none reaches across `addr`: a 1 GiB leaf into 2 MiB leaves, and one of these
    /// into 4 KiB leaves. Counts move with the leaves, exactly. Flushes. Shared.
    ///
    /// # Errors
    /// [`MapError::OutOfMemory`]; all addresses translate as before, though one leaf may have been split.
    pub fn split_at(&self, addr: VirtAddr) -> Result<(), MapError> {
        self.split_at_by(addr, Gfp::KERNEL)
    }

    /// As [`Self::split_at`], with tables allocated by `gfp`. Shared.
    ///
    /// # Errors
    /// As [`Self::split_at`].
    pub(crate) fn split_at_by(&self, addr: VirtAddr, gfp: Gfp) -> Result<(), MapError> {
        loop {
            let found = self.lookup(addr);
            match found.leaf_size() {
                Some(size) if !addr.is_aligned(size.bytes()) => {
                    let leaf = VirtRange::from_len(addr.align_down(size.bytes()), size.bytes());
                    self.split_leaves(leaf, found.level, gfp)?;
                }
                _ => return Ok(()),
            }
        }
    }

    /// Splits the large leaves that reach over the start or the end of the range. Shared.
    ///
    /// # Errors
    /// As [`Self::split_at`].
    pub(crate) fn split_ends(&self, range: VirtRange) -> Result<(), MapError> {
        let table = range.start.align_down(Level::PTE.table_bytes());
        let within_table = range.end.0 - table.0 <= Level::PTE.table_bytes();
        if within_table && self.lookup(range.start).level == Level::PTE {
            // A table of 4 KiB leaves maps all of the range.
            return Ok(());
        }
        self.split_at(range.start)?;
        self.split_at(range.end)
    }

    /// Splits the first [`SPLIT_BATCH`] large leaves in the range, which one table of `level` covers, with
    /// one flush for all; one of 1 GiB gets its own flush. Other tasks may do the same, so the caller looks
    /// again. Shared.
    ///
    /// # Errors
    /// [`MapError::OutOfMemory`]; all addresses translate as before, though some leaves may have been split.
    pub(super) fn split_leaves(&self, range: VirtRange, level: Level, gfp: Gfp) -> Result<(), MapError> {
        let (Some(table), Some(size)) = (self.find(range.start, level), level.leaf_size()) else {
            return Ok(());
        };
        let mut pieces = [const { None }; SPLIT_BATCH];
        self.prepare_split(table, range, gfp, &mut pieces)?;
        let begun = pieces.iter_mut().flatten().try_for_each(|piece| self.begin_split(table, size, piece));
        // The leaves that were taken out have all that they need, also after an error.
        self.finish_split(table, size, &mut pieces);
        begun
    }

    /// Allocates a table for each leaf to split.
    fn prepare_split<'s>(
        &'s self,
        table: Table<'p>,
        range: VirtRange,
        gfp: Gfp,
        pieces: &mut LeafSplits<'s, 'p, P>,
    ) -> Result<(), MapError> {
        let level = table.level();
        let batch = if level == Level::PMD { SPLIT_BATCH } else { 1 };
        let (start, count) = (range.start.align_down(level.entry_bytes()), range.len() / level.entry_bytes());
        let addrs = (0..count).map(|at| start.add(at * level.entry_bytes()));
        let leaves = addrs.filter(|&addr| table.load(table.index(addr)).is_leaf(level));
        for (piece, addr) in pieces[..batch].iter_mut().zip(leaves) {
            let fresh = FreshTable::by(self.allocator, level.below(), gfp)?;
            *piece = Some(LeafSplit { addr, leaf: Entry::EMPTY, fresh });
        }
        Ok(())
    }

    /// Counts the small leaves and takes the large one out, if it is still there.
    fn begin_split(
        &self,
        table: Table<'p>,
        size: PageSize,
        piece: &mut LeafSplit<'_, 'p, P>,
    ) -> Result<(), MapError> {
        let mut prepared = None;
        let done = loop {
            let Err(CountError::Prepare { at, .. }) = self.take_out(table, size, piece) else { break Ok(()) };
            prepared = Some(at);
            if let Err(error) = self.allocator.counts().prepare_counts(at) {
                break Err(error.into());
            }
        };
        if let Some(frame) = prepared.filter(|_| !piece.is_taken()) {
            self.allocator.counts().forget_counts(frame);
        }
        done
    }

    /// As [`Self::begin_split`], unless counts must be prepared first; nothing has changed then. It takes the
    /// table's lock for each leaf, so that no more frames are counted under one hold.
    fn take_out(
        &self,
        table: Table<'p>,
        size: PageSize,
        piece: &mut LeafSplit<'_, 'p, P>,
    ) -> Result<(), CountError> {
        let index = table.index(piece.addr);
        let locked = self.lock(table);
        let seen = locked.load(index);
        if seen.is_leaf(table.level()) {
            if !seen.has(EntryFlags::SPECIAL) {
                self.move_counts(seen.frame(), size)?;
            }
            // What hardware has recorded by now goes into every small leaf (invariant 3). A CPU that has the
            // large leaf cached and wants to record more finds the entry gone.
            piece.leaf = locked.exchange(index, Entry::BUSY);
        }
        Ok(())
    }

    /// Flushes once for all leaves that were taken out, and installs their tables.
    fn finish_split(&self, table: Table<'p>, size: PageSize, pieces: &mut LeafSplits<'_, 'p, P>) {
        let (mut owed, mut split) = (FlushBatch::new(), 0);
        for piece in pieces.iter().flatten().filter(|piece| piece.is_taken()) {
            piece.fill(size);
            owed.add_split(table.extent(piece.addr), size);
            split += 1;
        }
        if split == 0 {
            return;
        }
        // The entries are busy marks of this task, so no other task changes them.
        owed.flush(self.allocator, self.context);
        let locked = self.lock(table);
        for piece in pieces.iter_mut().filter_map(|piece| piece.take_if(|piece| piece.is_taken())) {
            piece.fresh.install(self.context, &locked, table.index(piece.addr));
        }
        drop(locked);
        self.allocator.count(Stat::ThpSplitPmd, if size == PageSize::Size2M { split } else { 0 });
    }

    /// Counts one leaf of `size` as its parts. At every moment each frame of it has a count.
    fn move_counts(&self, frame: Frame, size: PageSize) -> Result<(), CountError> {
        let mut counter = self.allocator.counts().counter();
        if counter.split_leaf(frame, size) {
            return Ok(());
        }
        if size == PageSize::Size2M {
            counter.map(FrameRange::folio(frame, size.order()))?;
        } else {
            for part in 0..TABLE_ENTRIES as u64 {
                counter.map_large(frame.add(part * PageSize::Size2M.frames()), PageSize::Size2M);
            }
        }
        // SAFETY: invariant 5: the leaf that is being split was counted with this size, and its parts are by
        // now.
        unsafe { counter.unmap_large(frame, size, Contents::Unknown) };
        Ok(())
    }
}
