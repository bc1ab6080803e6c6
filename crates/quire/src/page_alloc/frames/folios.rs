//! Which folio a frame in use belongs to, and its marks.

use core::sync::atomic::Ordering;

use crate::addr::{Frame, FrameRange, Order};
use crate::limits::BLOCK_FRAMES;
use crate::memmap::{BlockState, Descriptor, DescriptorFlags, FrameMask};
use crate::page_alloc::frames::Frames;
use crate::page_alloc::frames::bad::state_outside;
use crate::page_alloc::frames::state::head_of;
use crate::platform::FramePlatform;

impl<P: FramePlatform> Frames<'_, P> {
    /// The first frame of the folio in use around a frame.
    pub(crate) fn folio_start(&self, frame: Frame) -> Option<Frame> {
        let (block, index) = (self.memmap.get_around(frame)?, frame.index_in_block());
        block.lock(self.platform);
        let start = match block.state() {
            BlockState::Small if block.used.contains(index) => block
                .heads
                .load()
                .previous_set(index)
                .map(|head| frame.block().first_frame().add(head as u64)),
            BlockState::Folio | BlockState::FolioTail => {
                Some(head_of(frame.block(), block.order.load(Ordering::Relaxed)).first_frame())
            }
            _ => None,
        };
        block.unlock(self.platform);
        start
    }

    /// Whether the frame's block, which the caller keeps in use, is in small pieces.
    #[inline]
    pub(crate) fn is_in_pieces(&self, frame: Frame) -> bool {
        self.memmap.block(frame.block()).state() == BlockState::Small
    }

    /// Frames from `frame` to the end of its folio. The caller keeps the folio from being freed or split.
    pub fn folio_rest(&self, frame: Frame) -> u64 {
        let block = self.memmap.block(frame.block());
        if block.state() == BlockState::Small {
            let index = frame.index_in_block();
            // The folio ends at another folio, a free frame, or one that is not the allocator's or is lost.
            // Most are one frame.
            let after = index + 1;
            if after == BLOCK_FRAMES || block.heads.contains(after) || !block.used.contains(after) {
                return 1;
            }
            let (used, heads) = (block.used.load(), block.heads.load());
            let next = FrameMask::ALL.without(used).union(heads).next_set(after).unwrap_or(BLOCK_FRAMES);
            let end = (after..next).find(|&at| state_outside(block, at).is_some()).unwrap_or(next);
            return (end - index) as u64;
        }
        let frames = 1 << block.order.load(Ordering::Relaxed).max(Order::BLOCK.get());
        frames - frame.0 % frames
    }

    /// Whether the frame right behind this one is of the same folio. The caller keeps the folio from being
    /// freed or split.
    #[cfg(feature = "published")]
    pub(crate) fn folio_goes_on(&self, frame: Frame) -> bool {
        let block = self.memmap.block(frame.block());
        if block.state() != BlockState::Small {
            let frames = 1 << block.order.load(Ordering::Relaxed).max(Order::BLOCK.get());
            return (frame.0 + 1) & (frames - 1) != 0;
        }
        let after = frame.index_in_block() + 1;
        after < BLOCK_FRAMES
            && block.used.contains(after)
            && !block.heads.contains(after)
            && state_outside(block, after).is_none()
    }

    /// Whether the frame is of a folio of order 9 or more. The caller keeps that from being freed or split.
    #[inline]
    pub(crate) fn is_of_whole_blocks(&self, frame: Frame) -> bool {
        matches!(self.memmap.block(frame.block()).state(), BlockState::Folio | BlockState::FolioTail)
    }

    /// The folio of whole blocks around a frame, which the caller keeps from being freed or split.
    pub(crate) fn folio_of_whole_blocks(&self, frame: Frame) -> FrameRange {
        let order = self.memmap.block(frame.block()).order.load(Ordering::Relaxed);
        FrameRange::new(head_of(frame.block(), order).first_frame(), 1 << order)
    }

    /// The descriptor of the folio of whole blocks around a frame, which the caller keeps from being freed or
    /// split.
    fn folio_descriptor(&self, frame: Frame) -> &Descriptor {
        let order = self.memmap.block(frame.block()).order.load(Ordering::Relaxed);
        self.memmap.block(head_of(frame.block(), order)).folio()
    }

    /// Marks pages of files among the 64 aligned frames around `frame`, a bit for each, or the folio of whole
    /// blocks around it: as accessed, and as newer than their file. The caller keeps them from being freed or
    /// split.
    #[inline]
    pub(crate) fn mark(&self, frame: Frame, accessed: u64, dirty: u64) {
        if let Some(columns) = self.memmap.block(frame.block()).columns() {
            return columns.mark(frame.index_in_block(), accessed, dirty);
        }
        let folio = self.folio_descriptor(frame);
        for (mark, bits) in [(DescriptorFlags::ACCESSED, accessed), (DescriptorFlags::DIRTY, dirty)] {
            if bits != 0 && !folio.has(mark) {
                folio.add_flags(mark);
            }
        }
    }

    /// Whether a page of a file, or the folio of whole blocks around it, was stored to through a leaf that
    /// was unmapped since its mark was taken. The caller keeps the page from being freed or split.
    pub fn is_dirty(&self, frame: Frame) -> bool {
        self.has_mark(frame, DescriptorFlags::DIRTY)
    }

    /// [`Self::is_dirty`]; takes the mark off.
    ///
    /// ```compile_fail,E0133
    /// # use quire::{addr::Frame, page_alloc::PageAllocator, platform::FramePlatform};
    /// # fn example<P: FramePlatform>(pages: &PageAllocator<'_, P>) {
    /// pages.frames().take_dirty(Frame(42)); // Another file's page, which is then never written back.
    /// # }
    /// ```
    ///
    /// # Safety
    /// The caller is the page cache that has the page, and writes it back if this returns `true`: no other
    /// record of the stores is left (invariant 3).
    pub unsafe fn take_dirty(&self, frame: Frame) -> bool {
        self.take_mark(frame, DescriptorFlags::DIRTY)
    }

    /// [`Self::is_dirty`] for accesses of any kind.
    pub fn is_accessed(&self, frame: Frame) -> bool {
        self.has_mark(frame, DescriptorFlags::ACCESSED)
    }

    /// [`Self::is_accessed`]; takes the mark off.
    ///
    /// ```compile_fail,E0133
    /// # use quire::{addr::Frame, page_alloc::PageAllocator, platform::FramePlatform};
    /// # fn example<P: FramePlatform>(pages: &PageAllocator<'_, P>) {
    /// pages.frames().take_accessed(Frame(42)); // Another file's page, which is then reclaimed too early.
    /// # }
    /// ```
    ///
    /// # Safety
    /// The caller is the page cache that has the page, and takes `true` for a use of it: no other record of
    /// the accesses is left (invariant 3).
    pub unsafe fn take_accessed(&self, frame: Frame) -> bool {
        self.take_mark(frame, DescriptorFlags::ACCESSED)
    }

    fn has_mark(&self, frame: Frame, mark: DescriptorFlags) -> bool {
        match self.memmap.block(frame.block()).columns() {
            Some(columns) => columns.has_mark(frame.index_in_block(), mark),
            None => self.folio_descriptor(frame).has(mark),
        }
    }

    fn take_mark(&self, frame: Frame, mark: DescriptorFlags) -> bool {
        if let Some(columns) = self.memmap.block(frame.block()).columns() {
            return columns.take_mark(frame.index_in_block(), mark);
        }
        let folio = self.folio_descriptor(frame);
        let marked = folio.has(mark);
        folio.take_flags(mark);
        marked
    }

    /// Whether a folio of order 9 starts at the frame.
    pub(crate) fn is_block_folio(&self, frame: Frame) -> bool {
        let Some(block) = self.memmap.get_around(frame) else { return false };
        block.state() == BlockState::Folio
            && frame.is_aligned(Order::BLOCK)
            && block.order.load(Ordering::Relaxed) == Order::BLOCK.get()
    }
}
