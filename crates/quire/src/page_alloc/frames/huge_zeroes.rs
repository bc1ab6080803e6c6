//! Which blocks of a page of a pool of huge pages are known to be zero, so that none is cleared twice.
//!
//! Each block's record has a mark. The first block's can also say that *all* of the page is zero: the other
//! marks are none then, so a page of 1 GiB that is zero is found, and forgotten, by one access. Marks are of
//! pages in a pool, and of a page that a task has taken until it stores to it or hands it on. They come from
//! the store with the memory, follow a page when it is demoted or promoted, and go back with it.

use core::sync::atomic::{Ordering, fence};

use crate::addr::{Frame, Order};
use crate::limits::BLOCK_FRAMES;
use crate::memmap::{Block, DescriptorFlags};
use crate::page_alloc::frames::Frames;
use crate::platform::FramePlatform;

/// Nothing is known of the block.
const UNKNOWN: u8 = 0;
/// The block is zero.
const BLOCK: u8 = 1;
/// In a page's first record: all of the page is zero. The other records say nothing.
const PAGE: u8 = 2;

impl<P: FramePlatform> Frames<'_, P> {
    /// Whether all of a page of a pool is known to be zero.
    #[inline]
    pub(crate) fn is_huge_zero(&self, frame: Frame, order: Order) -> bool {
        let mark = mark_of(self.memmap.block(frame.block()));
        mark == PAGE || mark == BLOCK && order == Order::BLOCK
    }

    /// Whether this block of a page of a pool is known to be zero.
    pub(in crate::page_alloc) fn is_block_zero(&self, frame: Frame, block: u32) -> bool {
        mark_of(self.memmap.block(frame.block().add(block))) != UNKNOWN
    }

    /// Notes that a block of a page of a pool is zero. The caller has the page to itself.
    pub(crate) fn note_huge_zero(&self, frame: Frame, block: u32) {
        set_mark(self.memmap.block(frame.block().add(block)), BLOCK);
    }

    /// Notes that all of a page of a pool is zero. The caller has the page to itself.
    pub(crate) fn note_all_huge_zero(&self, frame: Frame, order: Order) {
        self.blocks(frame, order).for_each(|block| set_mark(block, UNKNOWN));
        set_mark(self.memmap.block(frame.block()), if order == Order::BLOCK { BLOCK } else { PAGE });
    }

    /// Makes one mark of those of a page's blocks, if all are there, and returns whether they are. The caller
    /// has the page to itself.
    pub(crate) fn join_huge_zeroes(&self, frame: Frame, order: Order) -> bool {
        let all = self.blocks(frame, order).all(|block| mark_of(block) != UNKNOWN);
        if all {
            self.note_all_huge_zero(frame, order);
        }
        all
    }

    /// Gives each block a mark of its own. The caller has the page to itself.
    pub(in crate::page_alloc) fn split_huge_zeroes(&self, frame: Frame, order: Order) {
        if mark_of(self.memmap.block(frame.block())) == PAGE {
            self.blocks(frame, order).for_each(|block| set_mark(block, BLOCK));
        }
    }

    /// Forgets what is known of a page, before a task stores to it or others can.
    pub(crate) fn forget_huge_zeroes(&self, frame: Frame, order: Order) {
        let first = self.memmap.block(frame.block());
        if mark_of(first) != PAGE {
            self.blocks(frame, order).for_each(|block| set_mark(block, UNKNOWN));
        }
        set_mark(first, UNKNOWN);
    }

    /// The first block of a page of a pool that is not known to be zero, if an idle CPU may clear it now.
    /// Under the pool's lock; the page is free. The CPU ends with
    /// [`Store::clear_huge_ahead`](crate::page_alloc::Store::clear_huge_ahead).
    pub(crate) fn begin_huge_ahead(&self, frame: Frame, order: Order) -> Option<u32> {
        let first = self.memmap.block(frame.block()).folio();
        let block = self.blocks(frame, order).position(|block| mark_of(block) == UNKNOWN)?;
        let is_free = !self.is_huge_zero(frame, order) && !first.has(DescriptorFlags::CLEARING);
        is_free.then(|| first.add_flags(DescriptorFlags::CLEARING));
        is_free.then_some(block as u32)
    }

    /// Marks the block that this CPU has cleared since [`Self::begin_huge_ahead`], if it did, and lets the page
    /// go.
    pub(in crate::page_alloc) fn end_huge_ahead(&self, frame: Frame, block: u32, cleared: bool) {
        if cleared {
            self.note_huge_zero(frame, block);
        }
        self.memmap.block(frame.block()).folio().take_flags(DescriptorFlags::CLEARING);
    }

    /// Whether a CPU waits for the page to leave its pool.
    pub(in crate::page_alloc) fn is_huge_wanted(&self, frame: Frame) -> bool {
        self.memmap.block(frame.block()).folio().has(DescriptorFlags::WANTED)
    }

    /// Waits until no idle CPU clears a page that leaves its pool: for one stretch at most.
    #[inline]
    pub(crate) fn wait_for_huge_ahead(&self, frame: Frame) {
        let flags = self.memmap.block(frame.block()).folio();
        if flags.has(DescriptorFlags::CLEARING) {
            flags.add_flags(DescriptorFlags::WANTED);
            while flags.has(DescriptorFlags::CLEARING) {
                self.platform.relax();
            }
            // The marks, and the zeroes, are seen from here on.
            fence(Ordering::Acquire);
            flags.take_flags(DescriptorFlags::WANTED);
        }
    }

    fn blocks(&self, frame: Frame, order: Order) -> impl Iterator<Item = &Block> {
        (0..blocks_in(order)).map(move |at| self.memmap.block(frame.block().add(at)))
    }
}

fn blocks_in(order: Order) -> u32 {
    (order.frames() / BLOCK_FRAMES as u64) as u32
}

/// Whether the page of a pool that starts with this block is zero as a whole, however many blocks it has.
pub(in crate::page_alloc) fn is_zero_page(first: &Block) -> bool {
    mark_of(first) == PAGE
}

/// Whether the block itself is marked.
pub(in crate::page_alloc) fn is_zero_block(block: &Block) -> bool {
    mark_of(block) == BLOCK
}

fn mark_of(block: &Block) -> u8 {
    block.huge_zeroes().load(Ordering::Acquire)
}

fn set_mark(block: &Block, mark: u8) {
    block.huge_zeroes().store(mark, Ordering::Release);
}
