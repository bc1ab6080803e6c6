//! Sharing page-table pages between address spaces, for `fork`.
//!
//! # Protocol
//!
//! Several address spaces may reach a table of 4 KiB leaves. Each of their parent's entries lacks the right
//! to store ([`Entry::shared_table`]). Hardware allows only what every level allows, so no CPU stores through
//! the table or sets a dirty bit in it; accessed bits it does set. `sharers` in the table's descriptor says
//! how many address spaces reach it beside one; `owner` and `word` are zero.
//!
//! *Joining.* `fork` holds the parent's address-space lock exclusive. It takes the right to store out of the
//! parent's entry, flushes before it gives the lock back, and adds one to `sharers`. It changes no leaf and
//! no map count: a leaf counts once, however many address spaces reach its table (invariant 5).
//!
//! *While shared* a table's leaves may only lose the right to store, under the table's lock: no address space
//! could use that right. A task that wants to change a leaf or fill an empty entry first unshares the table.
//! Only for a leaf in an unshared table does a map count of one say that the frame is mapped once.
//!
//! *Unsharing* ([`PageTables::unshare`]) holds its own address space's lock exclusive, so no walker of that
//! address space is inside the table. Walkers of others have a share each, which keeps the table. When
//! `sharers` is zero no other address space is left, nor can one join: the entry gets its right back. Else
//! the leaves are copied to a new table under the lock of the old one, as `fork` without sharing copies them:
//! each frame counts one leaf more, and neither side may store to it. One exchange of the parent's entry
//! installs the copy. Accessed bits that hardware sets in the old table between the copy and the flush do not
//! reach the copy; dirty bits cannot be set.
//!
//! *Leaving* follows for the old table, for one that is unmapped whole, and at exit: a task takes the entry
//! out, flushes the CPUs that run the address space, paging-structure caches included, and only then takes
//! one from `sharers`. An address space that finds zero there is the last, and takes the table apart like any
//! other.
//!
//! `sharers` changes by atomic read-modify-write (`tlb/sharers.rs`) and needs no lock. Only an address space
//! with a share adds one; one that gave its share back reads the table no more. A share is an entry, and
//! entries change only under an exclusive hold. So zero, seen by an address space with a share, stays zero.

use core::sync::atomic::Ordering;

use super::copy::CopyMode;
use super::lock::LockedTable;
use super::{FreshTable, PageTables, Zap, place_of};
use crate::addr::{VirtAddr, VirtRange};
use crate::arch::{Entry, EntryFlags, Level};
use crate::error::MapError;
use crate::limits::TABLE_ENTRIES;
use crate::platform::TablePlatform;
use crate::stats::Stat;
use crate::tlb::words::Table;
use crate::tlb::{FlushBatch, MmuGather, RssChange, Unmapped, resident, sharers};

/// An entry that points to a shared table.
struct Shared<'t> {
    parent: Table<'t>,
    index: usize,
    /// What the table covers.
    extent: VirtRange,
    /// The part of it in the range.
    part: VirtRange,
    table: Table<'t>,
}

impl Shared<'_> {
    /// Whether a part of the extent maps anything. The answer stays true as long as the table is shared.
    fn maps(&self, part: VirtRange) -> bool {
        let first = self.table.index(part.start);
        let count = (part.len() / Level::PTE.entry_bytes()) as usize;
        (first..first + count).any(|index| !self.table.load(index).is_empty())
    }

    fn maps_outside(&self) -> bool {
        self.maps(VirtRange::new(self.extent.start, self.part.start))
            || (self.part.end < self.extent.end && self.maps(VirtRange::new(self.part.end, self.extent.end)))
    }
}

impl<'p, P: TablePlatform> PageTables<'_, 'p, P> {
    /// As [`Self::copy`] with a private mode, but shares tables of 4 KiB leaves that lie wholly inside
    /// `limits` instead of copying them, unless a leaf is marked for a handler. The limits cover the range,
    /// and map nothing that the child may not have.
    ///
    /// # Errors
    /// [`MapError::OutOfMemory`]: the child has the leaves of a part of the range.
    pub fn share(
        &self,
        child: &Self,
        range: VirtRange,
        limits: VirtRange,
        mode: CopyMode,
        owed: &mut FlushBatch,
        rss: &mut RssChange,
    ) -> Result<(), MapError> {
        self.check(range)?;
        debug_assert!(limits.covers(range) && mode.is_private());
        let mut rest = range;
        while !rest.is_empty() {
            let Some(directory) = self.find(rest.start, Level::PMD) else {
                let step = self.step(rest);
                self.copy(child, step.range, mode, owed, rss)?;
                rest.start = step.range.end;
                continue;
            };
            let covered = Level::PMD.table_bytes();
            let end = rest.end.min(rest.start.align_down(covered).add(covered));
            let part = VirtRange::new(rest.start, end);
            rest.start = self.share_tables(child, directory, part, limits, owed, rss)?;
            if rest.start < end {
                // A large leaf, or a table of which only a part may be shared.
                let one = VirtRange::new(rest.start, end.min(directory.extent(rest.start).end));
                self.copy(child, one, mode, owed, rss)?;
                rest.start = one.end;
            }
        }
        Ok(())
    }

    /// Shares the tables below one directory up to the first entry that must be copied; returns its address.
    fn share_tables(
        &self,
        child: &Self,
        directory: Table<'p>,
        part: VirtRange,
        limits: VirtRange,
        owed: &mut FlushBatch,
        rss: &mut RssChange,
    ) -> Result<VirtAddr, MapError> {
        owed.owe_for(self.context);
        let base = part.start.align_down(Level::PMD.entry_bytes());
        let count = (part.end.0 - base.0).div_ceil(Level::PMD.entry_bytes());
        let extents = (0..count).map(|at| directory.extent(base.add(at * Level::PMD.entry_bytes())));
        let entry = |extent: &VirtRange| directory.load(directory.index(extent.start));
        let fits = |extent: &VirtRange| {
            let entry = entry(extent);
            entry.is_table(Level::PMD) && limits.covers(*extent) && !self.has_marks(directory, entry)
        };
        let blocked = extents.clone().find(|extent| !entry(extent).is_empty() && !fits(extent));
        let stop = blocked.map_or(part.end, |extent| extent.start.max(part.start));
        let mut shared = extents.take_while(|extent| extent.start < stop).filter(fits).peekable();
        if shared.peek().is_none() {
            return Ok(stop);
        }
        let target = child.ensure(part.start, Level::PMD)?;
        let (from, to) = (self.lock(directory), self.lock_second(target));
        for extent in shared {
            let index = directory.index(extent.start);
            // Another mapping in its extent may have shared it already.
            if to.load(index).is_empty() && self.share_table(child, (&from, &to), index, rss) {
                owed.add_tables(extent);
            }
        }
        Ok(stop)
    }

    /// Whether a leaf below an entry is marked for a handler: the child may have to lack the mark.
    #[inline]
    fn has_marks(&self, directory: Table<'p>, entry: Entry) -> bool {
        self.context.has_marks() && {
            let table = directory.child(self.platform(), entry);
            (0..TABLE_ENTRIES).any(|index| table.load(index).has(EntryFlags::UFFD_WP))
        }
    }

    /// Lets the child reach the table below an entry; returns whether the entry lost the right to store.
    #[inline]
    fn share_table(
        &self,
        child: &Self,
        (from, to): (&LockedTable<'_, P>, &LockedTable<'_, P>),
        index: usize,
        rss: &mut RssChange,
    ) -> bool {
        let entry = from.load(index);
        let table = from.table().child(self.platform(), entry);
        let descriptor = self.allocator.frames().descriptor(table.frame());
        if descriptor.population.load(Ordering::Relaxed) == 0 {
            return false;
        }
        *rss += resident(table, descriptor);
        let ours = !entry.is_shared_table(Level::PMD);
        if ours {
            descriptor.owner.store(0, Ordering::Relaxed);
            descriptor.word.store(0, Ordering::Relaxed);
            sharers::begin(descriptor.sharers());
            from.update(index, entry, |entry| entry.without(EntryFlags::WRITE));
            self.context.note_shared();
        } else {
            sharers::add(descriptor.sharers());
        }
        to.fill(index, Entry::shared_table(table.frame()));
        child.context.add_tables(1);
        child.context.note_shared();
        self.allocator.count(Stat::TableShare, 1);
        ours
    }

    /// Unshares every table that maps a page of the range. Flushes. Exclusive.
    ///
    /// # Errors
    /// [`MapError::OutOfMemory`]; all translations are as before then.
    #[inline]
    pub fn unshare(&self, range: VirtRange) -> Result<(), MapError> {
        if !self.context.has_shared() {
            return Ok(());
        }
        self.unshare_where(range, |shared| shared.maps(shared.part))
    }

    /// As [`Self::unshare`], but keeps shared those tables whose mapped pages all lie inside the range or all
    /// outside it. [`Self::detach_shared`] takes the former out without needing memory.
    ///
    /// # Errors
    /// As [`Self::unshare`].
    #[inline]
    pub(crate) fn unshare_ends(&self, range: VirtRange) -> Result<(), MapError> {
        if self.context.has_shared() { self.unshare_crossed(range) } else { Ok(()) }
    }

    /// [`Self::unshare_ends`], where tables may be shared.
    fn unshare_crossed(&self, range: VirtRange) -> Result<(), MapError> {
        let crossed = |shared: &Shared<'_>| shared.maps(shared.part) && shared.maps_outside();
        let table = |addr: VirtAddr| addr.align_down(Level::PTE.table_bytes());
        for at in [table(range.start), table(range.end)] {
            let extent = VirtRange::from_len(at, Level::PTE.table_bytes());
            if extent.overlaps(range) {
                self.unshare_where(extent.intersect(range), crossed)?;
            }
        }
        Ok(())
    }

    fn unshare_where(&self, range: VirtRange, wanted: impl Fn(&Shared<'p>) -> bool) -> Result<(), MapError> {
        let mut gather = MmuGather::new(self.allocator, self.context);
        let (mut rest, mut done) = (range, Ok(()));
        while let Some(shared) = self.next_shared(&mut rest) {
            if wanted(&shared) {
                gather.reserve(self.context);
                done = self.make_own(&shared, &mut gather);
            }
            if done.is_err() {
                break;
            }
        }
        // The copies map what the originals did, so resident memory is the same.
        gather.finish();
        done
    }

    /// Detaches shared tables that map pages of the range and nothing outside `doomed`, all of which the
    /// caller unmaps; they go to the gather. Keeps those that the limits let [`Self::unmap`] detach.
    /// Exclusive.
    pub(crate) fn detach_shared(&self, zap: &Zap, doomed: VirtRange, gather: &mut MmuGather<'_, '_, P>) {
        let mut rest = zap.range;
        while let Some(shared) = self.next_shared(&mut rest) {
            let shared = Shared { part: shared.extent.intersect(doomed), ..shared };
            let detached = zap.limits.covers(shared.extent) && self.context.zap().is_by_table();
            if detached || !shared.maps(shared.part) || shared.maps_outside() {
                continue;
            }
            gather.reserve(self.context);
            let entry = self.lock(shared.parent).exchange(shared.index, Entry::EMPTY);
            gather.add(Unmapped::table(entry, Level::PMD));
            gather.owe_tables(shared.extent);
            self.allocator.count(Stat::ZapTable, 1);
        }
    }

    /// The first entry in the range that points to a shared table; `rest` starts behind it afterwards.
    fn next_shared(&self, rest: &mut VirtRange) -> Option<Shared<'p>> {
        while self.context.has_shared() && !rest.is_empty() {
            let mut parent = self.root();
            let mut entry = parent.load(parent.index(rest.start));
            while parent.level() > Level::PMD && entry.is_table(parent.level()) {
                parent = parent.child(self.platform(), entry);
                entry = parent.load(parent.index(rest.start));
            }
            let extent = parent.extent(rest.start);
            let (index, part) = (parent.index(rest.start), extent.intersect(*rest));
            rest.start = part.end;
            if entry.is_shared_table(parent.level()) {
                let table = parent.child(self.platform(), entry);
                return Some(Shared { parent, index, extent, part, table });
            }
        }
        None
    }

    /// Makes a shared table this address space's own: takes it over if no other is left, else copies it.
    fn make_own(&self, shared: &Shared<'p>, gather: &mut MmuGather<'_, '_, P>) -> Result<(), MapError> {
        let Shared { parent, index, table, .. } = *shared;
        self.allocator.count(Stat::TableUnshare, 1);
        let descriptor = self.allocator.frames().descriptor(table.frame());
        if sharers::is_last(descriptor.sharers()) {
            descriptor.owner.store(self.context.root().0, Ordering::Relaxed);
            descriptor.word.store(place_of(parent.frame(), index), Ordering::Relaxed);
            let locked = self.lock(parent);
            locked.update(index, locked.load(index), |entry| entry.with(EntryFlags::WRITE));
            return Ok(());
        }
        let fresh = FreshTable::new(self.allocator, Level::PTE)?;
        let copied = self.copy_table(table, shared.extent, fresh.table());
        if copied.is_err() {
            // The drain lowers what was counted, as for any table.
            gather.add(fresh.abandon(self.context));
            return copied;
        }
        let old = fresh.exchange(self.context, &self.lock(parent), index);
        gather.add(Unmapped::table(old, Level::PMD));
        // The copy maps the same frames, and no CPU could store through the original.
        gather.owe_reshaped(shared.extent);
        Ok(())
    }
}
