//! Frees memory when it is out: page cache that can be read again, then memory that was freed lazily.
#![forbid(unsafe_code)]

use crate::addr::{PageSize, VirtAddr, VirtRange};
use crate::arch::{EntryFlags, Protection};
use crate::filemap::{FileClosed, FileNode, PageRuns};
use crate::limits::{LOCK_HOLD_FRAMES, RECLAIM_FRAMES};
use crate::pgtable::{GrantWrite, Zap};
use crate::platform::{Event, Platform};
use crate::stats::Stat;
use crate::tlb::{FlushBatch, MmuGather};
use crate::vm::fault::flags::without_stores;
use crate::vm::gigantic::cancel::Cancellation;
use crate::vm::handle::handle;
use crate::vm::mapping::vma::{Vma, VmaFlags};
use crate::vm::rmap::reverse::ReverseMap;
use crate::vm::space::address_space::AddressSpace;
use crate::vm::space::rss::Counted;
use crate::vm::space::shared::MmShared;
use crate::vm::space::state::Space;

/// The most runs of lazily freed pages in one round.
const RUNS: usize = 32;

handle! { Reclaim of MmShared }

impl<P: Platform> Reclaim<'_, '_, P> {
    /// Frees memory that can be restored, the cheapest first: page cache that is not mapped, frames of large
    /// folios that are not mapped, untouched pieces of folios of 1 GiB, page cache that is mapped, and zeroes
    /// in underused folios, if such may be split. Returns the frames freed. The caller holds no lock.
    pub(crate) fn reclaim_all(self) -> u64 {
        let mut freed = self.reclaim();
        if freed == 0 {
            freed = self.pages().split_deferred(RECLAIM_FRAMES);
        }
        if freed == 0 {
            freed = Cancellation::of(self.0).cancel_all();
        }
        if freed == 0 {
            freed = self.hooks().reclaim_mapped.get(self.platform()).map_or(0, |reclaim| reclaim(self.0));
        }
        if freed == 0 {
            let split = self.hooks().reclaim_underused.get(self.platform());
            freed = split.map_or(0, |split| split(self.0));
        }
        self.platform().event(Event::Reclaimed { frames: freed });
        freed
    }

    /// Lets [`Self::reclaim_all`] look for mapped page cache from now on.
    pub(in crate::vm) fn begin_with_files(self) {
        self.hooks().reclaim_mapped.install(self.platform(), |memory| Reclaim::of(memory).reclaim_mapped());
    }

    /// Unmaps clean pages of files wherever they are mapped, and drops them. Returns the frames freed.
    fn reclaim_mapped(self) -> u64 {
        let (mut freed, mut place) = (0, (0, 0));
        while freed < RECLAIM_FRAMES
            && let Some((file, next)) = self.files().next_file(self.platform(), place)
        {
            place = next;
            if !file.node().is_collapsing()
                && let Some(closed) = file.node().try_close()
            {
                freed += self.reclaim_file(&closed, RECLAIM_FRAMES - freed);
            }
            self.close(file);
        }
        self.pages().count(Stat::PgstealFile, freed);
        freed
    }

    fn reclaim_file(self, file: &FileClosed<'_>, wanted: u64) -> u64 {
        let (mut freed, mut from) = (0, Some(0));
        while freed < wanted
            && let Some(at) = from
        {
            let (runs, next) = self.files().clean_runs(self.platform(), file, at);
            self.unmap_clean(file.node(), &runs);
            freed += self.files().drop_runs(self.pages(), file, &runs);
            from = next;
        }
        freed
    }

    /// Unmaps pages of a closed file, except where they are locked or marked for a handler, with one flush for
    /// each address space. Private copies stay; while the file is closed, no fault makes new ones.
    fn unmap_clean(self, file: &FileNode, runs: &PageRuns) {
        ReverseMap::of(self.0).each_mapper(file, &runs.hull(), |found| {
            let mut gather = MmuGather::new(self.pages(), &found.body.context);
            for run in runs.as_slice() {
                found.each_part(run, |vma, range| {
                    if !vma.attributes.flags.contains(VmaFlags::LOCKED) {
                        found.unmap_plain(vma, range, &mut gather);
                    }
                });
            }
            let change = gather.finish();
            found.body.add_rss(self.pages(), change, Counted::File);
            self.pages().count(Stat::PgscanFile, change.file.unsigned_abs());
        });
    }
}

handle! {
    /// Makes free memory for an address space that found none.
    SpaceReclaim of AddressSpace
}

impl<P: Platform> SpaceReclaim<'_, '_, P> {
    /// Returns how many frames became free: zero when nothing is left to reclaim. The caller holds no lock.
    pub(in crate::vm) fn free_some(self) -> u64 {
        let first = Reclaim::of(self.memory).reclaim_all();
        if first > 0 {
            return first;
        }
        let drop = self.memory.hooks().drop_lazily_freed.get(self.memory.platform());
        drop.map_or(0, |drop| drop(self.0))
    }

    /// Lets [`Self::free_some`] look for lazily freed pages from now on.
    #[inline]
    pub(in crate::vm) fn begin_with_lazily_freed(self) {
        let hook = &self.memory.hooks().drop_lazily_freed;
        hook.install(self.memory.platform(), |space| SpaceReclaim::of(space).drop_lazily_freed());
    }

    /// Drops pages of this address space that `MADV_FREE` freed and no task stored to since, until some
    /// memory is free. Returns how many frames became free: those that no other address space maps.
    fn drop_lazily_freed(self) -> u64 {
        loop {
            let (dropped, freed) = self.drop_some();
            self.memory.pages().count(Stat::Pglazyfreed, freed);
            if freed > 0 || dropped == 0 {
                return freed;
            }
            self.memory.platform().reschedule_point();
        }
    }

    /// Returns how many pages were dropped, and how many frames became free by it.
    fn drop_some(self) -> (u64, u64) {
        let space = self.lock();
        let (runs, count) = self.lazy_runs(&space);
        let runs = &runs[..count];
        // From the flush on, a store to one of them faults and waits for the lock.
        let mut owed = FlushBatch::new();
        for &run in runs {
            let allowed =
                space.tree.find(run.start).map_or(Protection::NONE, |vma| vma.attributes.protection);
            let kept = without_stores(allowed);
            let done = self.tables().protect(run, kept, GrantWrite::Never, &mut owed);
            debug_assert_eq!(done, Ok(()), "leaves begin and end where runs do");
        }
        owed.flush(self.memory.pages(), self.context());
        let (counts, mut freed) = (self.memory.pages().counts(), 0);
        let mut gather = MmuGather::new(self.memory.pages(), self.context());
        for &run in runs {
            let mut at = run.start;
            while at < run.end {
                let found = self.tables().lookup(at);
                let size = found.leaf_size().unwrap_or(PageSize::Size4K);
                let leaf = VirtRange::from_len(at, size.bytes());
                if found.entry.has(EntryFlags::LAZY_FREE) && !found.entry.has(EntryFlags::DIRTY) {
                    let first = found.entry.frame();
                    let alone = |at: &u64| counts.mapcount(first.add(*at)) == 1;
                    freed += (0..size.frames()).filter(alone).count() as u64;
                    let done = self.tables().unmap(&Zap::leaves(leaf), &mut gather);
                    debug_assert_eq!(done, Ok(()), "whole leaves need no split");
                }
                at = leaf.end;
            }
        }
        let change = gather.finish();
        self.add_rss(change, Counted::File);
        (change.anon.unsigned_abs(), freed)
    }

    /// The first runs of lazily freed leaves of which one is clean.
    fn lazy_runs(self, space: &Space) -> ([VirtRange; RUNS], usize) {
        let (mut runs, mut count, mut pages) = ([VirtRange::default(); RUNS], 0, 0);
        let lazy =
            |vma: &&Vma| vma.attributes.is_anonymous() && !vma.attributes.flags.contains(VmaFlags::LOCKED);
        for vma in space.tree.iter().filter(lazy) {
            if count == RUNS || pages >= LOCK_HOLD_FRAMES as u64 {
                break;
            }
            self.tables().runs(vma.range, |run| {
                let bytes = run.count * run.size.bytes();
                if run.first.has(EntryFlags::LAZY_FREE)
                    && !run.shared
                    && self.has_clean_leaf(run.addr, bytes)
                    && count < RUNS
                    && pages < LOCK_HOLD_FRAMES as u64
                {
                    runs[count] = VirtRange::from_len(run.addr, bytes);
                    count += 1;
                    pages += bytes / PageSize::Size4K.bytes();
                }
            });
        }
        (runs, count)
    }

    fn has_clean_leaf(self, start: VirtAddr, bytes: u64) -> bool {
        (0..bytes).step_by(PageSize::Size4K.bytes() as usize).any(|at| {
            let entry = self.tables().lookup(start.add(at)).entry;
            entry.has(EntryFlags::LAZY_FREE) && !entry.has(EntryFlags::DIRTY)
        })
    }
}
