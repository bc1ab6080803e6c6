//! Changes the rights of leaves.

use super::PageTables;
use super::lock::LockedTable;
use super::walk::TableRange;
use crate::addr::{Frame, PageSize, VirtRange};
use crate::arch::{Entry, EntryFlags, Protection};
use crate::error::MapError;
use crate::page_alloc::PageAllocator;
use crate::platform::TablePlatform;
use crate::tlb::FlushBatch;

/// Which leaves gain the right to store when the new protection has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GrantWrite {
    /// None: the first store faults, and the fault decides. Always so for leaves that are marked or not
    /// soft-dirty.
    Never,
    /// Anonymous leaves up to 2 MiB whose frames no other leaf maps and nothing holds: for private mappings.
    Exclusive,
    /// All: for shared mappings whose stores need no notice.
    Always,
}

/// The usual bits of a leaf that may gain the right to store.
const EASY: EntryFlags = EntryFlags::ANON.union(EntryFlags::SOFT_DIRTY);
/// What a change of protection replaces.
const CHANGED: EntryFlags = EntryFlags::PROTECTION;

impl<'p, P: TablePlatform> PageTables<'_, 'p, P> {
    /// Gives every leaf in the range the rights of `protection`, the right to store only as `grant` says.
    /// First splits large leaves that reach over an end of the range; after that nothing can fail. The caller
    /// owes a flush for the leaves that lost a right. Exclusive, until the flush.
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
        self.unshare(range)?;
        self.protect_cut(range, protection, grant, owed);
        Ok(())
    }

    /// As [`Self::protect`], for a range of user pages over whose ends no leaf reaches, and whose tables no
    /// other address space reaches.
    pub(crate) fn protect_cut(
        &self,
        range: VirtRange,
        protection: Protection,
        grant: GrantWrite,
        owed: &mut FlushBatch,
    ) {
        let rights = EntryFlags::leaf(protection);
        let mut rest = range;
        while !rest.is_empty() {
            let step = self.step(rest);
            rest.start = step.range.end;
            if step.is_lowest() || step.holds_leaf() {
                self.protect_step(&step, rights, grant, owed);
            }
            self.platform().reschedule_point();
        }
    }

    fn protect_step(
        &self,
        step: &TableRange<'p>,
        rights: EntryFlags,
        grant: GrantWrite,
        owed: &mut FlushBatch,
    ) {
        let Some(size) = step.table.level().leaf_size() else { return };
        owed.owe_for(self.context);
        let mut change = Change { allocator: self.allocator, rights, size, grant, group: None, sole: 0 };
        let indices = step.indices();
        let (mut at, mut first_lost, mut end_lost) = (indices.start, usize::MAX, 0);
        let locked = self.lock(step.table);
        while at < indices.end {
            let eight = if at + 8 <= indices.end { change.eight(&locked, at) } else { None };
            let (lost, count) = eight.map_or_else(|| (change.one(&locked, at), 1), |lost| (lost, 8));
            if lost {
                first_lost = first_lost.min(at);
                end_lost = at + count;
            }
            at += count;
        }
        drop(locked);
        if end_lost > 0 {
            owed.add(step.part(first_lost, end_lost), size);
        }
    }
}

/// The new rights, and what is known of the frames that the leaves map.
struct Change<'a, 'p, P: TablePlatform> {
    allocator: &'a PageAllocator<'p, P>,
    rights: EntryFlags,
    /// Of each leaf.
    size: PageSize,
    grant: GrantWrite,
    /// The aligned 64 frames that `sole` describes: a bit for each that one leaf maps and nothing else owns.
    group: Option<u64>,
    sole: u64,
}

impl<P: TablePlatform> Change<'_, '_, P> {
    /// Changes one leaf, if there is one; returns whether it lost a right.
    #[inline(never)]
    fn one(&mut self, locked: &LockedTable<'_, P>, index: usize) -> bool {
        let seen = locked.load(index);
        if !seen.is_present() {
            return false;
        }
        let rights = if self.may_store(seen) { self.rights } else { self.rights.without(EntryFlags::WRITE) };
        let before = locked.update(index, seen, |leaf| leaf.without(CHANGED).with(rights));
        before.flags().loses(rights)
    }

    /// Changes eight settled leaves with the same rights, if the new rights are the same for all; returns
    /// whether they lost a right. `None` for others: nothing has changed.
    #[inline]
    fn eight(&mut self, locked: &LockedTable<'_, P>, index: usize) -> Option<bool> {
        let leaves: [Entry; 8] = core::array::from_fn(|at| locked.load(index + at));
        let all = Entry::from_bits(leaves.iter().fold(u64::MAX, |all, leaf| all & leaf.bits()));
        let any = Entry::from_bits(leaves.iter().fold(0, |any, leaf| any | leaf.bits()));
        // Only leaves are accessed.
        let settled =
            all.has(EntryFlags::ACCESSED) && (all.has(EntryFlags::DIRTY) || !any.has(EntryFlags::WRITE));
        let before = all.flags().intersection(CHANGED);
        if !settled || before != any.flags().intersection(CHANGED) || !self.may_store_to_all(&leaves, any) {
            return None;
        }
        if before != self.rights {
            for (at, leaf) in leaves.into_iter().enumerate() {
                locked.table().store(index + at, leaf.without(CHANGED).with(self.rights));
            }
        }
        Some(before.loses(self.rights))
    }

    /// Whether eight leaves with the same rights may have the new right to store; `any` has the bits of all.
    #[inline]
    fn may_store_to_all(&mut self, leaves: &[Entry; 8], any: Entry) -> bool {
        if !self.rights.contains(EntryFlags::WRITE) || any.has(EntryFlags::WRITE) {
            return true;
        }
        // Mostly their frames are neighbours, so one lookup serves all.
        let group = leaves[0].frame().0 / 64;
        let alike = leaves.iter().all(|leaf| leaf.frame().0 / 64 == group && leaf.has(EASY));
        if self.grant != GrantWrite::Exclusive
            || !alike
            || any.has(EntryFlags::SPECIAL)
            || any.has(EntryFlags::UFFD_WP)
        {
            return leaves.iter().all(|&leaf| self.may_store(leaf));
        }
        let wanted = leaves.iter().fold(0, |wanted, leaf| wanted | 1 << (leaf.frame().0 % 64));
        self.may_store(leaves[0]) && self.sole & wanted == wanted
    }

    /// Whether a leaf may have the new right to store, if there is one, without a fault.
    #[inline]
    fn may_store(&mut self, leaf: Entry) -> bool {
        if !self.rights.contains(EntryFlags::WRITE) || leaf.has(EntryFlags::WRITE) {
            return true;
        }
        if leaf.has(EntryFlags::UFFD_WP) || !leaf.has(EntryFlags::SOFT_DIRTY) {
            return false;
        }
        match self.grant {
            GrantWrite::Never => false,
            GrantWrite::Always => !leaf.has(EntryFlags::SPECIAL),
            GrantWrite::Exclusive => {
                !leaf.has(EntryFlags::SPECIAL) && leaf.has(EntryFlags::ANON) && self.is_sole(leaf.frame())
            }
        }
    }

    /// Whether one leaf maps the frames and nothing else owns them. No other task adds a leaf: that takes our
    /// address-space lock. So an answer stays good for the whole group.
    #[inline]
    fn is_sole(&mut self, frame: Frame) -> bool {
        if self.size != PageSize::Size4K {
            return self.size == PageSize::Size2M && self.allocator.counts().is_block_mapped_once(frame);
        }
        if self.group != Some(frame.0 / 64) {
            self.look_around(frame);
        }
        self.sole >> (frame.0 % 64) & 1 == 1
    }

    #[inline(never)]
    fn look_around(&mut self, frame: Frame) {
        (self.group, self.sole) = (Some(frame.0 / 64), self.allocator.counts().mapped_once(frame));
    }
}

impl TableRange<'_> {
    /// Whether the entry above the lowest level is a leaf.
    #[inline]
    pub(super) fn holds_leaf(&self) -> bool {
        self.table.load(self.table.index(self.range.start)).is_leaf(self.table.level())
    }

    /// The addresses of the entries `first .. end`, which are among [`Self::indices`].
    #[inline]
    pub(super) fn part(&self, first: usize, end: usize) -> VirtRange {
        let bytes = self.table.level().entry_bytes();
        let base = self.range.start.align_down(bytes);
        let start = self.indices().start;
        VirtRange::new(base.add((first - start) as u64 * bytes), base.add((end - start) as u64 * bytes))
    }
}
