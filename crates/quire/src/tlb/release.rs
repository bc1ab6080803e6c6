//! Counting down, with reschedule points in between.

use super::unmapped::Leaves;
use crate::addr::{BlockNumber, FrameRange, PageSize};
use crate::limits::{DRAIN_FRAMES, DRAIN_RUNS};
use crate::memmap::FrameMask;
use crate::page_alloc::{Counter, PageAllocator};
use crate::platform::TablePlatform;

/// Up to so many frames of a block are counted down run by run.
const FEW: usize = 4;

/// Counts down, and reaches a reschedule point after a bounded amount of work.
pub(super) struct Release<'a, 'p, P: TablePlatform> {
    allocator: &'a PageAllocator<'p, P>,
    counter: Counter<'a, 'p, P>,
    /// How much work remains until the next reschedule point.
    runs_left: usize,
    frames_left: u64,
}

impl<'a, 'p, P: TablePlatform> Release<'a, 'p, P> {
    #[inline]
    pub(super) fn new(allocator: &'a PageAllocator<'p, P>) -> Self {
        let counter = allocator.counts().counter();
        Self { allocator, counter, runs_left: DRAIN_RUNS, frames_left: DRAIN_FRAMES }
    }

    /// Drops the counts of leaves onto consecutive frames.
    #[inline]
    pub(super) fn leaves(&mut self, &Leaves { frames, size, contents, .. }: &Leaves) {
        if size == PageSize::Size4K {
            let mut rest = frames;
            while rest.count > self.frames_left {
                let part = FrameRange::new(rest.start, self.frames_left);
                rest = FrameRange::new(part.end(), rest.count - part.count);
                self.small(part);
            }
            return self.small(rest);
        }
        for leaf in (0..frames.count).step_by(size.frames() as usize) {
            // SAFETY: invariants 2 and 5: the gather got each leaf once, from the verb that cleared it, and
            // has flushed.
            unsafe { self.counter.unmap_large(frames.start.add(leaf), size, contents) };
            self.spend(1, size.frames());
        }
    }

    /// Drops the counts of 4 KiB leaves onto consecutive frames, with one reschedule point at most.
    #[inline]
    fn small(&mut self, frames: FrameRange) {
        // SAFETY: invariants 2 and 5: the gather got each leaf once, from the verb that cleared it, and
        // has flushed.
        unsafe { self.counter.unmap(frames) };
        self.spend(1, frames.count);
    }

    /// Drops the counts of a part of a folio. Only the `last` part frees, and gives the block's lock back.
    #[cfg(feature = "published")]
    pub(super) fn part_of_folio(&mut self, leaves: &Leaves, last: bool, unmapped: &mut FrameMask) {
        if last && unmapped.is_empty() {
            self.leaves(leaves);
        } else {
            // SAFETY: invariants 2 and 5: the gather was given each leaf once, by the verb that cleared it,
            // and has flushed since; before the last part another leaf still maps the folio.
            unsafe { self.counter.unmap_part(leaves.frames, last, unmapped) };
            self.spend(1, leaves.frames.count);
        }
        if last {
            self.unlock();
        }
    }

    /// Drops the count of one 4 KiB leaf of each of these frames, the last ones of their block.
    pub(super) fn each(&mut self, block: BlockNumber, frames: FrameMask) {
        if frames.count() <= FEW {
            // Reading all counts of the block would cost more.
            for (start, count) in frames.runs() {
                let run = FrameRange::new(block.first_frame().add(start as u64), count as u64);
                // SAFETY: invariants 2 and 5: each leaf stood in a detached table that was flushed since.
                unsafe { self.counter.unmap(run) };
            }
        } else {
            // SAFETY: invariants 2 and 5: each leaf stood in a detached table that was flushed since.
            unsafe { self.counter.unmap_each(block, frames) };
        }
        self.unlock();
        self.spend(1, frames.count() as u64);
    }

    /// Releases the counter's lock, before other locks are taken or work is done that needs none.
    #[inline]
    pub(super) fn unlock(&mut self) {
        self.counter = self.allocator.counts().counter();
    }

    /// Accounts for runs that were counted down, or other work done for frames.
    #[inline]
    pub(super) fn spend(&mut self, runs: usize, frames: u64) {
        self.runs_left = self.runs_left.saturating_sub(runs);
        self.frames_left = self.frames_left.saturating_sub(frames);
        if self.runs_left == 0 || self.frames_left == 0 {
            self.rest();
        }
    }

    #[cold]
    fn rest(&mut self) {
        self.unlock();
        self.allocator.platform().reschedule_point();
        (self.runs_left, self.frames_left) = (DRAIN_RUNS, DRAIN_FRAMES);
    }
}
