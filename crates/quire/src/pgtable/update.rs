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
    /// splits large leaves that reach over an end of the range. Waits while a task replaces a leaf, so the
    /// caller has no busy entry. Shared.
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
            let mut again = None;
            for index in step.indices() {
                let seen = locked.load(index);
                if step.is_changing(seen) {
                    again = Some(index);
                    break;
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
            rest.start = again.map_or(step.range.end, |index| self.pause_at(&step, index));
            self.platform().reschedule_point();
        }
        Ok(())
    }
}
