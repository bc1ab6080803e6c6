//! Moves memory between frames and nodes, and out of ranges that are wanted as a whole.
#![forbid(unsafe_code)]

use crate::addr::{Frame, FrameRange};
use crate::error::{AllocError, HotplugError, MigrateError};
use crate::hugetlb::{HugeSize, Resized, Stopped};
use crate::limits::MAX_NODES;
use crate::manager::MemoryManager;
#[cfg(doc)]
use crate::page_alloc::PageAllocator;
use crate::page_alloc::{Effort, FrameRun, Gfp, NodePolicy, NodeSet};
use crate::platform::Platform;
use crate::vm::Migration;

impl<P: Platform> MemoryManager<'_, P> {
    /// Moves the anonymous folio around a frame, of order 9 at most, the file page in it, or the page of a
    /// pool around it, to other frames. Returns how many frames became free. The caller holds no lock.
    ///
    /// # Errors
    /// [`MigrateError`].
    pub fn migrate(&self, frame: Frame) -> Result<u64, MigrateError> {
        Migration::of(self.memory.sleepable()).migrate_to(frame, None)
    }

    /// As [`Self::migrate`], to frames of the nodes that the policy allows.
    ///
    /// # Errors
    /// [`MigrateError`].
    pub fn migrate_to(&self, frame: Frame, nodes: NodePolicy) -> Result<u64, MigrateError> {
        Migration::of(self.memory.sleepable()).migrate_to(frame, Some(nodes))
    }

    /// Moves what it can out of these frames: anonymous folios that start there, and pages of files and
    /// pools. Returns how many frames became free; other tasks may have allocated them since. The caller
    /// holds no lock.
    pub fn move_out(&self, range: FrameRange) -> u64 {
        Migration::of(self.memory.sleepable()).move_out(range)
    }

    /// Allocates `blocks` consecutive blocks as [`PageAllocator::alloc_contig`] does, and migrates folios
    /// that occupy them if necessary. The caller holds no lock.
    ///
    /// # Errors
    /// As [`PageAllocator::alloc_contig_moving`].
    pub fn alloc_contig(&self, gfp: Gfp, blocks: u32, align_blocks: u32) -> Result<FrameRun, AllocError> {
        let move_out = |range| _ = self.move_out(range);
        self.pages().alloc_contig_moving(gfp, blocks, align_blocks, move_out)
    }

    /// Moves memory of these nodes together, so that more blocks of 2 MiB are entirely free (Linux: a write
    /// to `/proc/sys/vm/compact_memory`). Returns how many more, as [`PageAllocator::compact`] counts them.
    /// The caller holds no lock.
    pub fn compact(&self, nodes: NodeSet) -> u64 {
        let move_out = |range| _ = self.move_out(range);
        self.pages().compact(nodes, move_out)
    }

    /// Removes memory as [`PageAllocator::remove_memory`] does, and migrates its folios. The caller holds no
    /// lock.
    ///
    /// # Errors
    /// As there.
    pub fn remove_memory(&self, range: FrameRange) -> Result<(), HotplugError> {
        self.memory.sleepable();
        let move_out = |range| _ = self.move_out(range);
        self.pages().remove_memory(range, move_out)
    }

    /// Resizes a pool as [`HugePools::resize`] does. When no free memory of that size is left, migrates
    /// folios to make some, until that fails too. The caller holds no lock.
    pub fn resize_huge(&self, size: HugeSize, nodes: NodeSet, wanted: u64) -> Resized {
        let (pages, pools) = (self.memory.sleepable().pages(), self.huge_pools());
        let mut done = pools.resize(pages, size, nodes, wanted);
        let before = done.before;
        while done.stopped == Some(Stopped::OutOfMemory)
            // Another CPU may have added more pages than are wanted.
            && self.add_huge(size, nodes, done.wanted.saturating_sub(done.after))
        {
            done = pools.resize(pages, size, nodes, wanted);
        }
        Resized { before, ..done }
    }

    /// Adds up to `count` pages to a pool, a batch at most, and migrates folios to make room for them if
    /// necessary. Returns whether it added any. The pool may become too large, which its next resize
    /// corrects. The caller holds no lock.
    pub fn add_huge(&self, size: HugeSize, nodes: NodeSet, count: u64) -> bool {
        let there = NodeSet::first(self.pages().requests().node_count().min(MAX_NODES));
        let gfp = Gfp::USER.from_nodes(NodePolicy::Bind(nodes.intersection(there)));
        let move_out = |range| {
            Migration::of(self.memory.sleepable()).move_out(range);
        };
        let emptied = || self.pages().alloc_emptied(gfp, size.order(), Effort::All, move_out);
        // The first request finds what is free and on lists; after it, none of that size is. A page that can
        // be had is not refused, however many blocks cannot be emptied.
        let mut first = true;
        let found = core::iter::from_fn(|| match core::mem::take(&mut first) {
            true => self.pages().alloc(gfp, size.order()).or_else(|_| emptied()).ok(),
            false => emptied().ok(),
        });
        self.huge_pools().adopt(self.pages(), size, found.take(count as usize)) > 0
    }
}
