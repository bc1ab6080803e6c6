//! Folios of whole blocks that belong to a pool of huge pages, in use or not.
//!
//! The pool *holds* them, so that no count that falls to zero frees one, and flags in their descriptors mark
//! them. Pages that leaves alone own are *lent*: when the last leaf goes, they wait on a stack for the pool.
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicU64, Ordering};

use crate::addr::{Frame, Order};
use crate::limits::BLOCK_FRAMES;
use crate::memmap::{Block, BlockState, Descriptor, DescriptorFlags, FrameMask, FrameState};
use crate::page_alloc::frames::Frames;
use crate::page_alloc::frames::owned::Folio;
use crate::page_alloc::store::whole::blocks_of;
use crate::platform::FramePlatform;

/// In the note of a lent page: it is being moved, or another page moves there.
const MOVING: u64 = 1 << 63;

/// Whether a page of a pool is being moved.
pub(in crate::page_alloc) fn is_moving(folio: &Descriptor) -> bool {
    folio.owner.load(Ordering::Relaxed) & MOVING != 0
}

/// Whether a folio of this order that belongs to a pool starts at the block.
fn is_huge_page(block: &Block, order: Order) -> bool {
    block.state() == BlockState::Folio
        && block.order.load(Ordering::Relaxed) == order.get()
        && block.held.contains(0)
        && block.folio_words().has(DescriptorFlags::HUGE)
}

impl<P: FramePlatform> Frames<'_, P> {
    /// Turns a folio of whole blocks into a page of a pool, which owns it from now on. The page leaves the
    /// pool, and is freed, by [`release`](crate::page_alloc::MapCounts::release) of its first frame. Returns
    /// that frame.
    ///
    /// # Panics
    /// When the folio is smaller than a block.
    pub fn make_huge(&self, folio: Folio) -> Frame {
        self.expect_own(&folio);
        assert!(folio.order() >= Order::BLOCK, "{folio:?} is smaller than a block");
        let frame = folio.into_raw();
        self.mark_huge(frame);
        frame
    }

    /// [`Self::make_huge`] for a folio of whole blocks by its number. Its descriptor stands where a block in
    /// small pieces says which folios it has.
    fn mark_huge(&self, frame: Frame) {
        let block = self.memmap.block(frame.block());
        block.lock(self.platform);
        block.folio().reset();
        block.folio().set_flags(DescriptorFlags::HUGE);
        block.held.insert_run(0, 1);
        FrameState::UNKNOWN.put(block.folio_state_cell());
        block.unlock(self.platform);
    }

    /// Whether a folio of this order that belongs to a pool starts at the frame. A hint, unless the caller keeps the
    /// folio from being freed: the block may get another use between two of the reads.
    pub fn is_huge(&self, frame: Frame, order: Order) -> bool {
        self.huge_block(frame).is_some_and(|block| is_huge_page(block, order))
    }

    /// Whether a folio of this order that belongs to a pool starts at the frame, and has this word (of a free page: its
    /// back link) not zero. Under the block's lock, which a CPU takes to free the folio: so the word is the folio's.
    pub(crate) fn is_huge_with(
        &self,
        frame: Frame,
        order: Order,
        word: impl Fn(&Descriptor) -> &AtomicU64,
    ) -> bool {
        let Some(block) = self.huge_block(frame) else { return false };
        block.lock(self.platform);
        let has = is_huge_page(block, order) && word(block.folio()).load(Ordering::Relaxed) != 0;
        block.unlock(self.platform);
        has
    }

    /// The block that starts at the frame.
    fn huge_block(&self, frame: Frame) -> Option<&Block> {
        self.memmap.get_around(frame).filter(|_| frame.index_in_block() == 0)
    }

    /// Splits a free page of 1 GiB of a pool into 512 of 2 MiB. The caller has it to itself.
    pub(crate) fn split_huge(&self, frame: Frame) {
        debug_assert!(self.is_huge(frame, Order::GIGANTIC));
        self.split_huge_zeroes(frame, Order::GIGANTIC);
        self.reshape(frame, |_| (BlockState::Folio, Order::BLOCK));
        let parts = 1..u64::from(blocks_of(Order::GIGANTIC));
        parts.for_each(|at| self.mark_huge(frame.add(at * BLOCK_FRAMES as u64)));
    }

    /// Joins 512 free pages of 2 MiB of a pool, in a row, to one of 1 GiB. The caller has them to itself.
    pub(crate) fn merge_huge(&self, frame: Frame) {
        self.reshape(frame, |at| {
            (if at == 0 { BlockState::Folio } else { BlockState::FolioTail }, Order::GIGANTIC)
        });
    }

    /// Gives each block of a page of 1 GiB its new state and order, the first one last.
    fn reshape(&self, frame: Frame, shape: impl Fn(u32) -> (BlockState, Order)) {
        for at in (0..blocks_of(Order::GIGANTIC)).rev() {
            let block = self.memmap.block(frame.block().add(at));
            let (state, order) = shape(at);
            block.lock(self.platform);
            if state == BlockState::FolioTail {
                block.held.remove_run(0, 1);
                // The map occupies the part's descriptor: clear it for the part's counts.
                block.heads.store(FrameMask::EMPTY);
            }
            block.order.store(order.get(), Ordering::Relaxed);
            block.set_state(state);
            block.unlock(self.platform);
        }
    }

    /// Gives a page of a pool that no leaf maps to the leaves that will map it: when the last of them goes,
    /// the page goes to [`returned_huge`](crate::page_alloc::MapCounts::returned_huge).
    pub(crate) fn lend_huge(&self, frame: Frame) {
        self.memmap.block(frame.block()).folio().add_flags(DescriptorFlags::LENT);
    }

    /// Takes a page back that was lent and never mapped.
    pub(crate) fn unlend_huge(&self, frame: Frame) {
        self.memmap.block(frame.block()).folio().take_flags(DescriptorFlags::LENT);
    }

    /// Starts to move a page that leaves own and map. Until [`Self::end_huge_move`] it stays lent even without leaves,
    /// and no leaf of it gains the right to store. Returns whether it did: it still has this order, and no other task
    /// moves it.
    pub(crate) fn begin_huge_move(&self, frame: Frame, order: Order) -> bool {
        let block = self.memmap.block(frame.block());
        block.lock(self.platform);
        let is_lent = is_huge_page(block, order) && block.folio().has(DescriptorFlags::LENT);
        let begins = is_lent && self.has_leaves(block) && !is_moving(block.folio());
        if begins {
            block.folio().owner.fetch_or(MOVING, Ordering::Relaxed);
        }
        block.unlock(self.platform);
        begins
    }

    /// Lends a page that no task maps, to which a moving page moves: it notes the same.
    pub(crate) fn lend_huge_moving(&self, from: Frame, to: Frame) {
        self.copy_huge_note(from, to);
        self.lend_huge(to);
    }

    /// Ends a move from or to this page. Returns whether no leaf maps it: then it is lent no more, and the caller owns
    /// it.
    pub(crate) fn end_huge_move(&self, frame: Frame) -> bool {
        self.end_move(frame, true)
    }

    /// The same if no leaf maps the page. Else it still moves.
    pub(crate) fn end_huge_move_if_unmapped(&self, frame: Frame) -> bool {
        self.end_move(frame, false)
    }

    fn end_move(&self, frame: Frame, even_mapped: bool) -> bool {
        let block = self.memmap.block(frame.block());
        block.lock(self.platform);
        let unmapped = !self.has_leaves(block);
        if unmapped || even_mapped {
            block.folio().owner.fetch_and(!MOVING, Ordering::Relaxed);
        }
        if unmapped {
            block.folio().take_flags(DescriptorFlags::LENT);
        }
        block.unlock(self.platform);
        unmapped
    }

    /// Whether a page of a pool is being moved: a leaf must not gain the right to store.
    pub(crate) fn is_huge_moving(&self, frame: Frame) -> bool {
        is_moving(self.memmap.block(frame.block()).folio())
    }

    /// Waits until no leaf of a page of a pool is counted. The caller has unmapped it everywhere, and no task
    /// maps it anew. But tasks that unmapped some of it, and hold no lock, may still have to flush or to
    /// count down. `small`: leaves smaller than the page may have mapped it.
    pub(crate) fn wait_until_uncounted(&self, frame: Frame, order: Order, small: bool) {
        let blocks = if small { blocks_of(order) } else { 1 };
        for at in 0..blocks {
            while self.is_counted(self.memmap.block(frame.block().add(at))) {
                self.platform.relax();
            }
        }
    }

    /// Whether leaves are counted in the record of a block of a page of a pool.
    fn is_counted(&self, block: &Block) -> bool {
        block.lock(self.platform);
        let any = self.has_leaves(block);
        block.unlock(self.platform);
        any
    }

    /// The same under the block's lock.
    fn has_leaves(&self, block: &Block) -> bool {
        let large = block.large_maps.load(Ordering::Relaxed) | block.gigantic_maps.load(Ordering::Relaxed);
        let any = large != 0 || block.folio_maps.load(Ordering::Acquire) != 0;
        // The published schemes count small leaves with the folio.
        any || self.scheme.is_dense() && block.small_maps(self.platform).any()
    }

    /// Whether leaves alone own a page of a pool.
    pub(crate) fn is_lent(&self, frame: Frame) -> bool {
        let block = self.memmap.block(frame.block());
        let of = [DescriptorFlags::HUGE, DescriptorFlags::LENT];
        block.state() == BlockState::Folio && of.into_iter().all(|flag| block.folio_words().has(flag))
    }

    /// A word for the user of a page of a pool.
    pub(crate) fn huge_note(&self, frame: Frame) -> &AtomicU64 {
        &self.memmap.block(frame.block()).folio().owner
    }

    /// Copies the note of a page to another.
    pub(crate) fn copy_huge_note(&self, from: Frame, to: Frame) {
        self.huge_note(to).store(self.huge_note(from).load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Whether the reservation of a page that no leaf maps was renewed; forgets it.
    pub(crate) fn take_renewed(&self, frame: Frame) -> bool {
        let folio = self.memmap.block(frame.block()).folio();
        let renewed = folio.has(DescriptorFlags::RENEWED);
        folio.take_flags(DescriptorFlags::RENEWED);
        renewed
    }

    /// Renews a page's reservation, to hold again when the page comes back. The caller's leaf still maps it.
    pub(crate) fn renew_huge(&self, frame: Frame) {
        self.memmap.block(frame.block()).folio().add_flags(DescriptorFlags::RENEWED);
    }

    #[cfg(feature = "published")]
    pub(crate) fn zone_of_frame(&self, frame: Frame) -> u8 {
        self.memmap.block(frame.block()).zone() as u8
    }
}
