//! Gathers 2 MiB of a file in one block, in order, so that one leaf may map them.
//!
//! The pages stay what they are: frames with a hold and marks each, of a block in small pieces. So
//! truncation, reclaim, writeback and memory failure go on handling them one by one.
//!
//! The block is a [`BlockReservation`] until then. Its frames become held pages, save those that go bad
//! before.
//!
//! One task at a time does it ([`FileCollapse`]). With the file closed it makes some pages busy and unmaps
//! them. Then it opens the file and copies them, and a task that wants one of them waits for these few.

use core::ops::Range;

use super::FileTable;
use super::file::{FileClosed, FileCollapse, FileNode, FileUse};
use crate::addr::{Frame, FrameRange, Order};
use crate::limits::{BLOCK_FRAMES, COLLAPSE_FILE_PAGES};
use crate::memmap::FrameMask;
use crate::page_alloc::{BlockReservation, CountGroup, PageAllocator};
use crate::platform::Platform;

/// The state of 512 pages of a file, from a multiple of 512 on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BlockSurvey {
    /// Pages that are in memory.
    pub present: usize,
    /// Present pages that are being read or written.
    pub busy: usize,
    /// Present pages whose memory went bad.
    pub lost: usize,
    /// The frame of the first present page.
    pub first: Option<Frame>,
    /// The first frame of the block in which all 512 stand in order, none busy, lost, cut off or behind the
    /// end.
    pub in_order: Option<Frame>,
}

/// Why pages cannot be moved now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotMoved {
    /// A page is not in memory.
    Missing,
    /// A page is being read or written, or was moved, or the frame reserved for it went bad.
    Busy,
    /// The memory of a page went bad.
    Lost,
    /// A handler of missing pages has come.
    Watched,
    /// There is no memory for the cache's own records.
    OutOfMemory,
}

/// Pages that are on their way into a block, all of them busy.
#[derive(Debug)]
pub struct PagesMoving {
    /// The first page, and the frame reserved for it.
    first: u64,
    to: Frame,
    /// The present frames of those that move.
    from: [Option<Frame>; COLLAPSE_FILE_PAGES],
}

impl PagesMoving {
    /// Whether all pages are in their places already.
    pub fn is_empty(&self) -> bool {
        self.from.iter().all(Option::is_none)
    }

    /// The pages that move, as runs of frames side by side: where each is, and where it goes.
    pub fn runs(&self) -> impl Iterator<Item = (FrameRange, Frame)> + '_ {
        let mut at = 0;
        core::iter::from_fn(move || {
            at += self.from[at..].iter().position(Option::is_some)?;
            let (start, first) = (at, self.from[at]?);
            let follows = |at: usize| self.from[at] == Some(first.add((at - start) as u64));
            at = (at..self.from.len()).find(|&at| !follows(at)).unwrap_or(self.from.len());
            Some((FrameRange::new(first, (at - start) as u64), self.to.add(start as u64)))
        })
    }

    fn each(&self) -> impl Iterator<Item = (u64, Frame, Frame)> + '_ {
        let moving = self.from.iter().enumerate();
        moving.filter_map(|(at, from)| Some((self.first + at as u64, (*from)?, self.to.add(at as u64))))
    }
}

impl FileTable {
    /// Surveys the 512 pages from a multiple of 512 on. The answer may be old.
    pub(crate) fn survey_block<P: Platform>(&self, platform: &P, file: &FileNode, first: u64) -> BlockSurvey {
        let end = first + BLOCK_FRAMES as u64;
        let mut survey = BlockSurvey::default();
        let cached = file.pages.lock(platform);
        let (mut at, mut ordered) = (first, true);
        while let Some((index, page)) = cached.next(at).filter(|&(index, _)| index < end) {
            survey.present += 1;
            survey.busy += usize::from(page.is_busy());
            survey.lost += usize::from(page.is_lost());
            let start = *survey.first.get_or_insert(page.frame());
            ordered &= page.frame() == start.add(index - first);
            at = index + 1;
        }
        ordered &= survey.present == BLOCK_FRAMES && survey.busy + survey.lost == 0;
        ordered &= !file.is_cut_off(end - 1);
        survey.in_order = survey.first.filter(|first| ordered && first.is_aligned(Order::BLOCK));
        survey
    }

    /// [`BlockSurvey::in_order`] for the 512 pages around `index`, whose page is in `frame`: mostly that
    /// frame alone says that they are not in order.
    pub(crate) fn block_of<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        file: &FileUse<'_>,
        index: u64,
        frame: Frame,
    ) -> Option<Frame> {
        let (first, inside) = (index - index % BLOCK_FRAMES as u64, index % BLOCK_FRAMES as u64);
        if frame.index_in_block() as u64 != inside || !pages.frames().is_block_held(frame) {
            return None;
        }
        self.survey_block(pages.platform(), file.node(), first).in_order
    }

    /// Makes pages busy that are to move to the reserved block, save those already there;
    /// [`COLLAPSE_FILE_PAGES`] at most. Ends with [`Self::end_gathering`].
    ///
    /// # Errors
    /// [`NotMoved`]; no page was made busy then.
    pub(crate) fn begin_gathering<P: Platform>(
        &self,
        platform: &P,
        file: &FileClosed<'_>,
        pages: Range<u64>,
        room: &BlockReservation,
    ) -> Result<PagesMoving, NotMoved> {
        let to = room.frame(pages.start);
        let mut moving = PagesMoving { first: pages.start, to, from: [None; COLLAPSE_FILE_PAGES] };
        let mut cached = file.node().pages.lock(platform);
        for (at, index) in pages.enumerate() {
            let page = cached.get(index).filter(|_| !file.node().is_cut_off(index));
            let page = page.ok_or(NotMoved::Missing)?;
            let there = page.frame() == room.frame(index);
            if page.is_lost() {
                return Err(NotMoved::Lost);
            } else if page.is_busy() || room.is_taken(index) && !there {
                // It was moved away, or dropped and read again: its reserved frame is no longer ours.
                return Err(NotMoved::Busy);
            }
            moving.from[at] = Some(page.frame()).filter(|_| !there);
        }
        for (index, ..) in moving.each() {
            cached.set_busy(index, true);
        }
        Ok(moving)
    }

    /// Ends the busy state, and moves the pages to the frames to which the caller has copied them; returns
    /// whether it moved them. Without a room, or if one of these frames went bad, they stay where they are.
    /// The frames that they leave are freed.
    pub(crate) fn end_gathering<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        collapse: &FileCollapse<'_>,
        moving: &PagesMoving,
        room: Option<&mut BlockReservation>,
    ) -> bool {
        let places = moving.each().map(|(.., to)| FrameMask::run(to.index_in_block(), 1));
        let places = places.fold(FrameMask::EMPTY, FrameMask::union);
        let mut cached = collapse.node().pages.lock(pages.platform());
        let moved = room.is_some_and(|room| pages.store().take_reserved(room, places));
        for (index, _, to) in moving.each() {
            if moved {
                cached.set_frame(index, to);
            }
            cached.set_busy(index, false);
        }
        if moved {
            // Under the lock: a search for a bad frame's page finds the page, or finds the frame free.
            for (frames, _) in moving.runs() {
                // SAFETY: invariant 1: the page cache held the frames, and names the new ones since.
                unsafe { pages.counts().release(frames) };
            }
        }
        moved
    }

    /// Whether any of the pages is still mapped where it was.
    pub fn is_mapped<P: Platform>(&self, pages: &PageAllocator<'_, P>, moving: &PagesMoving) -> bool {
        let mut group: Option<CountGroup> = None;
        moving.each().any(|(_, from, _)| {
            if !group.is_some_and(|group| group.frames.contains(from)) {
                group = pages.counts().count_group(from);
            }
            group.is_none_or(|group| group.leaves(from) != 0)
        })
    }
}
