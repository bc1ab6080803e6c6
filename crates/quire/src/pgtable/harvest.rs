//! Testing and clearing what hardware recorded, for `MADV_FREE`.

use super::PageTables;
use crate::addr::VirtRange;
use crate::arch::EntryFlags;
use crate::error::MapError;
use crate::platform::Platform;
use crate::tlb::FlushBatch;

/// What a leaf loses: from now on hardware records anew whether it is stored through.
const RECORDED: EntryFlags = EntryFlags::ACCESSED.union(EntryFlags::DIRTY);

impl<P: Platform> PageTables<'_, '_, P> {
    /// Marks every anonymous leaf in the range [`EntryFlags::LAZY_FREE`] and clears its accessed and dirty bits: unless
    /// one is stored through later, its contents may be dropped. Large leaves that reach over an end of the range are
    /// split first. How many 4 KiB pages were marked that were not before. A flush is owed for those whose bits were set;
    /// until it is made a store may go unnoticed. Shared.
    ///
    /// # Errors
    /// [`MapError::BadAddress`], [`MapError::OutOfMemory`]; nothing was marked then.
    pub fn mark_lazy_free(&self, range: VirtRange, owed: &mut FlushBatch) -> Result<u64, MapError> {
        self.check(range)?;
        self.split_ends(range)?;
        let mut marked = 0;
        let mut rest = range;
        while !rest.is_empty() {
            let step = self.step(rest);
            let level = step.table.level();
            let Some(size) = level.leaf_size() else {
                rest.start = step.range.end;
                continue;
            };
            let locked = self.lock(step.table);
            let mut recorded: Option<(usize, usize)> = None;
            let mut next = step.range.end;
            for index in step.indices() {
                let seen = locked.load(index);
                if !step.is_lowest() && seen.is_table(level) {
                    // It was split after the walk: look again.
                    next = step.range.start;
                }
                if !seen.is_leaf(level) || !seen.has(EntryFlags::ANON) || seen.has(EntryFlags::SPECIAL) {
                    continue;
                }
                let before =
                    locked.update(index, seen, |leaf| leaf.without(RECORDED).with(EntryFlags::LAZY_FREE));
                if !before.has(EntryFlags::LAZY_FREE) {
                    marked += size.frames();
                }
                if before.flags().intersection(RECORDED) != EntryFlags::NONE {
                    recorded = Some((recorded.map_or(index, |(first, _)| first), index + 1));
                }
            }
            drop(locked);
            if let Some((first, end)) = recorded {
                owed.add(step.part(first, end), size);
            }
            rest.start = next;
            self.platform().reschedule_point();
        }
        Ok(marked)
    }
}
