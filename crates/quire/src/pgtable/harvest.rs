//! Tests and clears what hardware recorded, for `MADV_FREE`.

use super::PageTables;
use crate::addr::VirtRange;
use crate::arch::{Entry, EntryFlags};
use crate::error::MapError;
use crate::platform::TablePlatform;
use crate::tlb::FlushBatch;

/// The bits that a leaf loses, so that hardware records anew whether it is stored through.
const RECORDED: EntryFlags = EntryFlags::ACCESSED.union(EntryFlags::DIRTY).union(EntryFlags::ZEROED);

impl<P: TablePlatform> PageTables<'_, '_, P> {
    /// Marks every anonymous leaf in the range [`EntryFlags::LAZY_FREE`] and clears its accessed and dirty
    /// bits: unless a CPU stores through it later, its contents may be dropped. First splits large leaves
    /// that reach over an end of the range. Returns how many 4 KiB pages were newly marked. The caller owes a
    /// flush for leaves whose bits were set; until then a store may go unnoticed. Shared.
    ///
    /// # Errors
    /// [`MapError::BadAddress`], [`MapError::OutOfMemory`]; nothing was marked then.
    pub fn mark_lazy_free(&self, range: VirtRange, owed: &mut FlushBatch) -> Result<u64, MapError> {
        let mut marked = 0;
        let concerns = |leaf: Entry| leaf.has(EntryFlags::ANON) && !leaf.has(EntryFlags::SPECIAL);
        // A leaf that is still clean keeps the mark that it maps zeroes.
        let lost = |leaf: Entry| if leaf.is_zeroed() { EntryFlags::ACCESSED } else { RECORDED };
        let mark = |leaf: Entry| {
            if concerns(leaf) { leaf.without(lost(leaf)).with(EntryFlags::LAZY_FREE) } else { leaf }
        };
        self.update_leaves(range, owed, mark, |before, size| {
            marked +=
                if before == mark(before) || before.has(EntryFlags::LAZY_FREE) { 0 } else { size.frames() };
            concerns(before) && before.flags().intersection(lost(before)) != EntryFlags::NONE
        })?;
        Ok(marked)
    }
}
