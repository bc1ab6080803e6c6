//! Changing what leaves allow.

use super::PageTables;
use super::lock::LockedTable;
use super::walk::Step;
use crate::addr::VirtRange;
use crate::arch::{Entry, EntryFlags, Protection};
use crate::error::MapError;
use crate::platform::Platform;
use crate::tlb::FlushBatch;

/// Which leaves get the right to store when the new protection has it and they do not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GrantWrite {
    /// None: the first store faults, and the fault decides.
    Never,
    /// Anonymous 4 KiB leaves whose frame nobody else maps or holds: private mappings.
    Exclusive,
    /// All: shared mappings whose stores need no notice.
    Always,
}

/// The rights that a leaf has or lacks; [`EntryFlags::NO_EXECUTE`] counts the other way round.
const RIGHTS: EntryFlags = EntryFlags::WRITE.union(EntryFlags::USER).union(EntryFlags::NO_EXECUTE);

impl<'p, P: Platform> PageTables<'_, 'p, P> {
    /// Gives every leaf in the range the rights of `protection`, the right to store only as `grant` says. Large leaves
    /// that reach over an end of the range are split first; after that nothing can fail. A flush is owed for the leaves
    /// that lost a right. Exclusive, until the flush.
    ///
    /// # Errors
    /// [`MapError::BadAddress`], [`MapError::OutOfMemory`]; no right has changed then.
    pub fn protect(
        &self,
        range: VirtRange,
        protection: Protection,
        grant: GrantWrite,
        owed: &mut FlushBatch,
    ) -> Result<(), MapError> {
        self.check(range)?;
        self.split_ends(range)?;
        let rights = EntryFlags::leaf(protection).intersection(RIGHTS);
        let mut rest = range;
        while !rest.is_empty() {
            let step = self.step(rest);
            rest.start = step.range.end;
            if step.is_lowest() || step.holds_leaf() {
                self.protect_step(&step, rights, grant, owed);
            }
        }
        Ok(())
    }

    fn protect_step(&self, step: &Step<'p>, rights: EntryFlags, grant: GrantWrite, owed: &mut FlushBatch) {
        let locked = self.lock(step.table);
        let Some(size) = step.table.level().leaf_size() else { return };
        let mut lost: Option<(usize, usize)> = None;
        for index in step.indices() {
            let seen = locked.load(index);
            if seen.is_present() && self.protect_leaf(&locked, index, seen, rights, grant) {
                lost = Some((lost.map_or(index, |(first, _)| first), index + 1));
            }
        }
        if let Some((first, end)) = lost {
            owed.add(step.part(first, end), size);
        }
    }

    /// Changes one leaf; whether it lost a right.
    #[inline]
    fn protect_leaf(
        &self,
        locked: &LockedTable<'_, P>,
        index: usize,
        seen: Entry,
        rights: EntryFlags,
        grant: GrantWrite,
    ) -> bool {
        let mut wanted = rights;
        if wanted.contains(EntryFlags::WRITE) && !seen.has(EntryFlags::WRITE) && !self.may_grant(seen, grant)
        {
            wanted = wanted.without(EntryFlags::WRITE);
        }
        let before = locked.update(index, seen, |leaf| leaf.without(RIGHTS).with(wanted));
        let taken = before.flags().without(wanted).intersection(EntryFlags::WRITE.union(EntryFlags::USER));
        let execute = wanted.without(before.flags()).contains(EntryFlags::NO_EXECUTE);
        taken != EntryFlags::NONE || execute
    }

    /// Whether a leaf may get the right to store without a fault.
    fn may_grant(&self, leaf: Entry, grant: GrantWrite) -> bool {
        match grant {
            GrantWrite::Never => false,
            GrantWrite::Always => !leaf.has(EntryFlags::SPECIAL),
            GrantWrite::Exclusive => {
                let ours = leaf.has(EntryFlags::ANON) && !leaf.has(EntryFlags::SPECIAL);
                ours && !leaf.has(EntryFlags::LARGE)
                    && self.allocator.mapcount(leaf.frame()) == 1
                    && !self.allocator.is_held(leaf.frame())
            }
        }
    }
}

impl Step<'_> {
    /// Whether the entry above the lowest level is a leaf.
    #[inline]
    pub(super) fn holds_leaf(&self) -> bool {
        self.table.load(self.table.index(self.range.start)).is_leaf(self.table.level())
    }

    /// The addresses of the entries `first .. end`, which are among those that the range concerns.
    #[inline]
    pub(super) fn part(&self, first: usize, end: usize) -> VirtRange {
        let bytes = self.table.level().entry_bytes();
        let base = self.range.start.align_down(bytes);
        let start = self.indices().start;
        VirtRange::new(base.add((first - start) as u64 * bytes), base.add((end - start) as u64 * bytes))
    }
}
