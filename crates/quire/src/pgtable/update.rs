//! Changes bits of every leaf in a range by one rule.

use super::PageTables;
use crate::addr::{PageSize, VirtRange};
use crate::arch::Entry;
use crate::error::MapError;
use crate::platform::TablePlatform;
use crate::tlb::FlushBatch;

impl<P: TablePlatform> PageTables<'_, '_, P> {
    /// Changes every leaf in the range by `change`, again where hardware sets more bits meanwhile. Shows
    /// `changed` each leaf as it was, with its size; where that returns true the caller owes a flush. First
    /// splits large leaves that reach over an end of the range. Shared.
    ///
    /// # Errors
    /// [`MapError::BadAddress`], [`MapError::OutOfMemory`]; nothing was changed then.
    pub(super) fn update_leaves(
        &self,
        range: VirtRange,
        owed: &mut FlushBatch,
        change: impl Fn(Entry) -> Entry,
        mut changed: impl FnMut(Entry, PageSize) -> bool,
    ) -> Result<(), MapError> {
        self.check(range)?;
        self.split_ends(range)?;
        self.unshare(range)?;
        owed.owe_for(self.context);
        let mut rest = range;
        while !rest.is_empty() {
            let step = self.step(rest);
            let level = step.table.level();
            let Some(size) = level.leaf_size() else {
                rest.start = step.range.end;
                continue;
            };
            let locked = self.lock(step.table);
            let (mut first_owed, mut end_owed) = (usize::MAX, 0);
            let mut next = step.range.end;
            for index in step.indices() {
                let seen = locked.load(index);
                if !step.is_lowest() && seen.is_table(level) {
                    // Another task split it after the walk: look again.
                    next = step.range.start;
                }
                if seen.is_leaf(level) && changed(locked.update(index, seen, &change), size) {
                    first_owed = first_owed.min(index);
                    end_owed = index + 1;
                }
            }
            drop(locked);
            if end_owed > 0 {
                owed.add(step.part(first_owed, end_owed), size);
            }
            rest.start = next;
            self.platform().reschedule_point();
        }
        Ok(())
    }
}
