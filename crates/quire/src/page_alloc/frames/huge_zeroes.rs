//! Which blocks of a page of a pool of huge pages are known to be zero, so that none is cleared twice.
//!
//! Each block's record has a mark. The first block's can also say that *all* of the page is zero: the other
//! marks are none then, so a page of 1 GiB that is zero is found, and forgotten, by one access. Marks are of
//! pages in a pool, and of a page that a task has taken until it stores to it or hands it on. They come from
//! the store with the memory, follow a page when it is demoted or promoted, and go back with it.
//!
//! While a page is free, a CPU *claims* a block by its mark, under the pool's lock, and then clears it without
//! any lock. A CPU that takes the page out of the pool's list waits until no block is claimed
//! ([`Frames::wait_for_huge_clears`]). A claim ends at the latest when its stretch does. Blocks of a page that
//! is mapped block by block ([`crate::vm`]'s `gigantic::pool`) are claimed likewise.

use core::sync::atomic::Ordering;

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
/// A CPU clears the block, which no leaf maps.
const CLAIMED: u8 = 3;

/// What there is to do before a block that needs zeroes can be mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BlockClear {
    /// Nothing: the block is zero.
    Zero,
    /// The caller has claimed it, and clears it.
    Claimed,
    /// Another CPU clears it.
    Busy,
}

impl<P: FramePlatform> Frames<'_, P> {
    /// Whether all of a page of a pool is known to be zero.
    #[inline]
    pub(crate) fn is_huge_zero(&self, frame: Frame, order: Order) -> bool {
        let mark = mark_of(self.memmap.block(frame.block()));
        mark == PAGE || mark == BLOCK && order == Order::BLOCK
    }

    /// Whether this block of a page of a pool is known to be zero.
    pub(crate) fn is_block_zero(&self, frame: Frame, block: u32) -> bool {
        is_zero(mark_of(self.memmap.block(frame.block().add(block))))
    }

    /// Whether all of a page of a pool is known to be zero, by one mark or by those of its blocks.
    pub(crate) fn is_all_zero(&self, frame: Frame, order: Order) -> bool {
        self.is_huge_zero(frame, order) || self.blocks(frame, order).all(|block| is_zero(mark_of(block)))
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
    /// has the page to itself. It looks first behind the block `from`, where one is missing most likely.
    pub(crate) fn merge_huge_zeroes(&self, frame: Frame, order: Order, from: u32) -> bool {
        let all = self.blocks_behind(frame, order, from).all(|(_, block)| is_zero(mark_of(block)));
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

    /// Claims a block of a free page that is not known to be zero, to clear it: the block `last` only when no
    /// other is left. Under the pool's lock.
    pub(crate) fn claim_huge_clear(&self, frame: Frame, order: Order, last: u32) -> Option<u32> {
        if self.is_huge_zero(frame, order) {
            return None;
        }
        let (at, block) =
            self.blocks_behind(frame, order, last).find(|(_, block)| mark_of(block) == UNKNOWN)?;
        set_mark(block, CLAIMED);
        Some(at)
    }

    /// Claims this block of a page in use that is mapped block by block, unless it is zero. Under the lock that
    /// the page's user has for this.
    pub(crate) fn claim_block_clear(&self, frame: Frame, block: u32) -> BlockClear {
        let block = self.memmap.block(frame.block().add(block));
        match mark_of(block) {
            CLAIMED => BlockClear::Busy,
            mark if is_zero(mark) => BlockClear::Zero,
            _ => {
                set_mark(block, CLAIMED);
                BlockClear::Claimed
            }
        }
    }

    /// Forgets what is known of one block, before a task can store to it. The page is not known to be zero as
    /// a whole.
    pub(crate) fn forget_block_zeroes(&self, frame: Frame, block: u32) {
        set_mark(self.memmap.block(frame.block().add(block)), UNKNOWN);
    }

    /// Ends a claim on a block, which is zero now if the CPU has `cleared` it.
    pub(in crate::page_alloc) fn end_huge_clear(&self, frame: Frame, block: u32, cleared: bool) {
        set_mark(self.memmap.block(frame.block().add(block)), if cleared { BLOCK } else { UNKNOWN });
    }

    /// Whether a CPU waits for the claims on the page's blocks.
    pub(in crate::page_alloc) fn is_huge_wanted(&self, frame: Frame) -> bool {
        self.memmap.block(frame.block()).folio().has(DescriptorFlags::WANTED)
    }

    /// Waits until no CPU clears a block of a page that has left its pool's list: for one stretch at most. The
    /// caller holds no lock that a CPU may spin for, since a task with a claim may have been preempted.
    #[inline]
    pub(crate) fn wait_for_huge_clears(&self, frame: Frame, order: Order) {
        let first = mark_of(self.memmap.block(frame.block()));
        if first != PAGE && (order > Order::BLOCK || first == CLAIMED) {
            self.wait_for_claims(frame, order);
        }
    }

    #[cold]
    fn wait_for_claims(&self, frame: Frame, order: Order) {
        let claimed = || self.blocks(frame, order).any(|block| mark_of(block) == CLAIMED);
        if !claimed() {
            return;
        }
        let flags = self.memmap.block(frame.block()).folio();
        flags.add_flags(DescriptorFlags::WANTED);
        while claimed() {
            self.platform.relax();
        }
        flags.take_flags(DescriptorFlags::WANTED);
    }

    fn blocks(&self, frame: Frame, order: Order) -> impl Iterator<Item = &Block> {
        (0..blocks_in(order)).map(move |at| self.memmap.block(frame.block().add(at)))
    }

    /// All blocks, from the one behind `from` on; that one comes last.
    fn blocks_behind(&self, frame: Frame, order: Order, from: u32) -> impl Iterator<Item = (u32, &Block)> {
        let count = blocks_in(order);
        let turned = (1..=count).map(move |step| (from + step) % count);
        turned.map(move |at| (at, self.memmap.block(frame.block().add(at))))
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

fn is_zero(mark: u8) -> bool {
    mark == BLOCK || mark == PAGE
}

fn mark_of(block: &Block) -> u8 {
    block.huge_zeroes().load(Ordering::Acquire)
}

fn set_mark(block: &Block, mark: u8) {
    block.huge_zeroes().store(mark, Ordering::Release);
}
