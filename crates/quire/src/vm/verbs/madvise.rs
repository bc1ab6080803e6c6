//! `madvise`: what a program says about its use of a range. File `advise.rs` has the advices that mappings keep.
#![forbid(unsafe_code)]

use core::ops::Range;

use crate::addr::{VirtAddr, VirtRange};
use crate::arch::Access;
use crate::arch::Protection;
use crate::error::{FaultError, MmError};
use crate::filemap::{FileKind, FileNode};
use crate::limits::{BLOCK_SIZE, FRAME_SHIFT, FRAME_SIZE};
use crate::pgtable::Zap;
use crate::platform::Platform;
use crate::stats::Stat;
use crate::tlb::{FlushBatch, MmuGather};
use crate::vm::collapse::call::CollapseCall;
use crate::vm::file::handle::File;
use crate::vm::gigantic::pool::PoolClears;
use crate::vm::handle::handle;
use crate::vm::hugetlb::reservations::Reservations;
use crate::vm::mapping::vma::{Backing, Vma, VmaAttributes, VmaFlags};
use crate::vm::reclaim::shrink::SpaceReclaim;
use crate::vm::space::address_space::AddressSpace;
use crate::vm::space::guard::SpaceGuard;
use crate::vm::space::rss::counted;
use crate::vm::space::state::Space;
use crate::vm::userfault::UserfaultModes;
use crate::vm::userfault::answer::Answers;
use crate::vm::userfault::changes::Notices;
use crate::vm::verbs::change::{all_mapped, covers};
use crate::vm::verbs::populate::{How, Populate};

/// The advice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// `MADV_DONTNEED`: unmap the pages now. Private ones lose their contents.
    DontNeed,
    /// `MADV_FREE`: private anonymous pages may lose their contents until they are next written.
    Free,
    /// `MADV_WILLNEED`: bring file pages into the page cache.
    WillNeed,
    /// `MADV_HUGEPAGE`: use large folios where the policy says "madvise".
    HugePage,
    /// `MADV_NOHUGEPAGE`: use single frames.
    NoHugePage,
    /// `MADV_COLLAPSE`: make folios of 2 MiB now ([`Mm::collapse`](crate::vm::Mm::collapse)).
    Collapse,
    /// `MADV_POPULATE_READ`: bring the pages in as reads would.
    PopulateRead,
    /// `MADV_POPULATE_WRITE`: bring the pages in as writes would.
    PopulateWrite,
    /// `MADV_SPLIT`: from now on, parts of shared huge pages may be mapped by themselves.
    Split,
    /// `MADV_NORMAL`: ends [`Self::Random`] and [`Self::Sequential`].
    Normal,
    /// `MADV_RANDOM`: pages are touched in any order. Only noted.
    Random,
    /// `MADV_SEQUENTIAL`: pages are touched in ascending order. Only noted.
    Sequential,
    /// `MADV_DONTNEED_LOCKED`: as [`Self::DontNeed`], of locked memory too.
    DontNeedLocked,
    /// `MADV_REMOVE`: frees pages of shared memory for all that map them, as a hole in its file.
    Remove,
    /// `MADV_COLD`: the pages will not be used soon. Checked, and otherwise ignored: reclaim finds them by
    /// itself.
    Cold,
    /// `MADV_PAGEOUT`: the pages should be reclaimed. As [`Self::Cold`].
    PageOut,
    /// `MADV_DONTFORK`: a child does not get the range.
    DontFork,
    /// `MADV_DOFORK`: a child gets it.
    DoFork,
    /// `MADV_WIPEONFORK`: a child finds zeroes in private anonymous memory.
    WipeOnFork,
    /// `MADV_KEEPONFORK`: a child finds the contents.
    KeepOnFork,
    /// `MADV_DONTDUMP`: a core dump leaves the range out.
    DontDump,
    /// `MADV_DODUMP`: a core dump contains it.
    DoDump,
}

handle! { Madvise of AddressSpace }

impl<'a, P: Platform> Madvise<'a, '_, P> {
    pub(in crate::vm) fn madvise(self, addr: VirtAddr, len: u64, advice: Advice) -> Result<(), MmError> {
        let pages = VirtAddr(len).align_up(FRAME_SIZE).ok_or(MmError::Invalid)?.0;
        let end = addr.0.checked_add(pages).map(VirtAddr).ok_or(MmError::Invalid)?;
        if !addr.is_aligned(FRAME_SIZE) {
            return Err(MmError::Invalid);
        }
        let range = VirtRange::new(addr, end);
        if range.is_empty() {
            return Ok(());
        }
        match advice {
            // As Linux: reading needs the right to read, though hardware can read whatever can be written.
            Advice::PopulateRead => self.populate_all(range, Access::Read, Protection::READ),
            Advice::PopulateWrite => self.populate_all(range, Access::Write, Protection::WRITE),
            Advice::WillNeed => self.will_need(range),
            Advice::DontNeed => self.dont_need(range, |vma| !vma.flags.contains(VmaFlags::LOCKED)),
            Advice::DontNeedLocked => self.dont_need(range, |_| true),
            Advice::Remove => self.remove(range),
            Advice::Cold | Advice::PageOut => self.check_reclaimable(range),
            Advice::Free => self.free_lazily(range),
            Advice::Collapse => {
                let report = CollapseCall::of(self.0).collapse(addr, pages)?;
                report.last.map_or(Ok(()), |why| Err(why.error()))
            }
            _ => self.advise_attributes(range, advice),
        }
    }

    /// Checks what `MADV_COLD` and `MADV_PAGEOUT` check.
    fn check_reclaimable(self, range: VirtRange) -> Result<(), MmError> {
        let space = self.space.read(self.memory.platform());
        let suits = |vma: &VmaAttributes| !vma.flags.contains(VmaFlags::LOCKED) && vma.huge_size().is_none();
        let inside = range.intersect(space.layout.user);
        let (_, outcome) = prefix(space.tree.overlapping(inside), inside, suits);
        outcome.and(covers(&space, range))
    }

    /// `MADV_REMOVE`: one mapping after the other, up to the first that does not suit.
    fn remove(self, range: VirtRange) -> Result<(), MmError> {
        let (mut at, mut covered) = (range.start, Ok(()));
        while at < range.end {
            let space = self.space.read(self.memory.platform());
            let Some(vma) = space.tree.first_in(VirtRange::new(at, range.end)) else {
                return Err(MmError::NoMemory);
            };
            if vma.range.start > at {
                covered = Err(MmError::NoMemory);
            }
            let part = vma.range.intersect(VirtRange::new(at, range.end));
            let Backing::File { file, .. } = &vma.attributes.backing else { return Err(MmError::Invalid) };
            if vma.attributes.flags.contains(VmaFlags::LOCKED) {
                return Err(MmError::Invalid);
            }
            if vma.attributes.is_private() || !vma.attributes.may.contains(Protection::WRITE) {
                return Err(MmError::Access);
            }
            if matches!(file.node().kind(), FileKind::Paged(_)) {
                return Err(MmError::NotSupported);
            }
            let start = vma.file_page(part.start).unwrap_or(0) << FRAME_SHIFT;
            let file = File::from_parts(self.memory, file.again());
            drop(space);
            file.punch_hole(start..start + part.len())?;
            at = part.end;
        }
        covered
    }

    fn dont_need(self, range: VirtRange, suits: fn(&VmaAttributes) -> bool) -> Result<(), MmError> {
        // Tables that go whole are detached, which is by far the fastest, but keeps faults out. So that is
        // done only where nothing has to be waited for; otherwise tables stand.
        let alone = if range.len() >= BLOCK_SIZE { self.0.try_lock() } else { None };
        let space = match alone {
            Some(space) => space,
            None => match self.drop_beside_faults(range, suits) {
                Some(done) => return done,
                None => self.0.lock(),
            },
        };
        if !space.handled {
            return self.drop_still_pages(space, range, suits);
        }
        drop(space);
        let handled = self.removable(range, suits);
        if let Some(part) = handled {
            Notices::of(self.0).tell_removed(part);
        }
        let done = self.drop_still_pages(self.0.lock(), range, suits);
        if let Some(part) = handled {
            Answers::of(self.0).wake_range(part);
        }
        done
    }

    /// Drops pages of one mapping while faults run; page tables stay. `None`, with nothing changed, where
    /// that cannot be: the caller then takes the lock for writing.
    #[inline]
    fn drop_beside_faults(
        self,
        range: VirtRange,
        suits: fn(&VmaAttributes) -> bool,
    ) -> Option<Result<(), MmError>> {
        let space = self.read_beside(|| range);
        let vma = space.tree.find(range.start).filter(|vma| vma.range.covers(range))?;
        if !self.allows_faults(&space) {
            return None;
        }
        if !suits(&vma.attributes) {
            return Some(Err(MmError::Invalid));
        }
        Some(self.cut(range).and_then(|cut| {
            let (tables, zap) = (self.tables(), Zap::leaves(range));
            if let Some(change) = tables.unmap_single(&zap, cut) {
                self.add_rss(change, counted(vma));
                return Ok(());
            }
            let mut gather = MmuGather::new(self.memory.pages(), self.context());
            let done = tables.unmap(&zap, &mut gather);
            self.add_rss(gather.end(), counted(vma));
            // A fault may have mapped a large leaf over an end meanwhile.
            done.map_err(|_| MmError::NoMemory)
        }))
    }

    /// The part of the range whose pages would be dropped now; `None` without any handler of faults.
    fn removable(self, range: VirtRange, suits: fn(&VmaAttributes) -> bool) -> Option<VirtRange> {
        let space = self.space.read(self.memory.platform());
        let range = Some(range.intersect(space.layout.user)).filter(|_| space.handled);
        let range = space.whole_pages(range?).ok()?;
        Some(prefix(space.tree.overlapping(range), range, suits).0)
    }

    /// As [`Self::drop_pages`]. A huge page that moves may need a page of its pool beside it for its reservation:
    /// where that is refused, waits for the end of the move. A task that moves pages needs nothing that the caller
    /// holds meanwhile. A refusal counts if it comes twice with no move to be seen: one may have ended after the first.
    #[inline]
    fn drop_still_pages(
        self,
        mut space: SpaceGuard<'a, P>,
        range: VirtRange,
        suits: fn(&VmaAttributes) -> bool,
    ) -> Result<(), MmError> {
        let mut is_again = false;
        loop {
            let done = self.drop_pages(&mut space, range, suits);
            if done != Err(MmError::NoMemory) || !space.huge {
                return done;
            }
            if !Reservations::of(self.0).any_moves(&space, range) {
                if is_again {
                    return done;
                }
                is_again = true;
                continue;
            }
            drop(space);
            self.memory.platform().relax();
            space = self.0.lock();
        }
    }

    #[inline]
    fn drop_pages(
        self,
        space: &mut SpaceGuard<'a, P>,
        range: VirtRange,
        suits: fn(&VmaAttributes) -> bool,
    ) -> Result<(), MmError> {
        // Mostly one mapping has all of the range.
        let first = space.tree.overlapping(range).next();
        if let Some(vma) = first.filter(|vma| vma.range.covers(range) && !space.huge) {
            if !suits(&vma.attributes) {
                return Err(MmError::Invalid);
            }
            let cut = self.cut(range)?;
            if self.has_faults_beside(space) {
                let kept = self.reach_of_faults(range);
                space.admit(kept);
                self.zap(space.tree.overlapping(range), range, range, cut);
            } else {
                self.zap(core::iter::once(vma), range, range, cut);
            }
            return Ok(());
        }
        let vmas = space.tree.overlapping(range);
        let covered = all_mapped(vmas.clone(), range);
        let range = space.whole_pages(range.intersect(space.layout.user))?;
        let (part, outcome) = prefix(vmas.clone(), range, suits);
        if part.is_empty() {
            return outcome.and(covered);
        }
        let cut = self.cut(part)?;
        // In this order: a page that is cancelled has lost its contents, and the reservations may be refused.
        Reservations::of(self.0).renew_reservations(space, part)?;
        PoolClears::of(self.memory).cancel(self.body(), part);
        self.zap(vmas.take_while(|vma| vma.range.start < part.end), part, part, cut);
        outcome.and(covered)
    }

    fn free_lazily(self, range: VirtRange) -> Result<(), MmError> {
        SpaceReclaim::of(self.0).begin_with_lazily_freed();
        let space = self.read_beside(|| range);
        if self.allows_faults(&space) {
            return self.mark_lazily_freed(&space, range);
        }
        drop(space);
        // From now on the pages may go at any time.
        if let Some(part) = self.removable(range, is_lazily_freeable) {
            Notices::of(self.0).tell_removed(part);
        }
        self.mark_lazily_freed(&self.lock(), range)
    }

    /// The caller holds the lock, for reading if it may.
    fn mark_lazily_freed(self, space: &Space, range: VirtRange) -> Result<(), MmError> {
        let covered = covers(space, range);
        let range = range.intersect(space.layout.user);
        let (part, outcome) = prefix(space.tree.overlapping(range), range, is_lazily_freeable);
        if part.is_empty() {
            // Nothing will be freed, so large leaves at the ends need no split.
            return outcome.and(covered);
        }
        self.cut(part)?;
        self.unshare(part)?;
        let mut owed = FlushBatch::new();
        let marked = self.tables().mark_lazy_free(part, &mut owed);
        owed.flush(self.memory.pages(), self.context());
        self.memory.pages().count(Stat::Pglazyfree, marked.map_err(|_| MmError::NoMemory)?);
        outcome.and(covered)
    }

    /// Reads the file pages of a range into the page cache. Shared memory that was never stored to stays as it
    /// is, as in Linux, which reads only what it has written to swap.
    fn will_need(self, range: VirtRange) -> Result<(), MmError> {
        let (memory, mut at) = (self.memory, range.start);
        let mut covered = Ok(());
        loop {
            let space = self.space.read(memory.platform());
            if at == range.start {
                covered = covers(&space, range);
            }
            let Some(vma) = space.tree.first_in(VirtRange { start: at, end: range.end }) else {
                return covered;
            };
            let part = vma.range.intersect(VirtRange::new(at, range.end));
            if let Backing::File { file, .. } = &vma.attributes.backing
                && matches!(file.node().kind(), FileKind::Paged(_))
                // Missing pages come from the handler alone.
                && !vma.attributes.handler.catches(UserfaultModes::MISSING)
            {
                let file = File::from_parts(memory, file.again());
                let first = vma.file_page(part.start).unwrap_or(0);
                // The pager is called without the lock.
                drop(space);
                self.read_ahead(file.node(), first..first + part.pages());
            }
            at = part.end;
        }
    }

    /// Reads pages of a file until one cannot be had. Those from there on are left to their first access.
    fn read_ahead(self, file: &FileNode, pages: Range<u64>) {
        let (memory, platform) = (self.memory, self.memory.platform());
        for page in pages {
            let used = loop {
                match file.enter() {
                    Some(used) => break used,
                    None => platform.relax(),
                }
            };
            let read = memory.files().page(memory.pages(), &used, page);
            drop(used);
            platform.reschedule_point();
            if read.is_err() || platform.is_dying() {
                return;
            }
        }
    }

    fn populate_all(self, range: VirtRange, access: Access, right: Protection) -> Result<(), MmError> {
        let how =
            |vma: &VmaAttributes| if vma.protection.contains(right) { How::As(access) } else { How::Refuse };
        Populate::of(self.0).populate_as(range, how).map_err(|error| match error {
            FaultError::NotMapped | FaultError::OutOfMemory | FaultError::Dying => MmError::NoMemory,
            FaultError::Protection => MmError::Invalid,
            FaultError::BeyondEnd
            | FaultError::Marked
            | FaultError::NoHandler
            | FaultError::NoHugePage
            | FaultError::Poisoned => MmError::Fault,
            FaultError::Io => MmError::Io,
        })
    }
}

fn is_lazily_freeable(vma: &VmaAttributes) -> bool {
    vma.is_anonymous() && !vma.flags.contains(VmaFlags::LOCKED)
}

/// The part of the range before the first of these mappings in it that does not suit, and the error for that
/// mapping.
pub(super) fn prefix<'v>(
    mut vmas: impl Iterator<Item = &'v Vma>,
    range: VirtRange,
    suits: impl Fn(&VmaAttributes) -> bool,
) -> (VirtRange, Result<(), MmError>) {
    match vmas.find(|vma| vma.range.overlaps(range) && !suits(&vma.attributes)) {
        Some(vma) => (VirtRange::new(range.start, vma.range.start.max(range.start)), Err(MmError::Invalid)),
        None => (range, Ok(())),
    }
}
