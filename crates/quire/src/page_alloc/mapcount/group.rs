//! Reads the map counts of neighbouring frames with one hold of their block's lock.
#![forbid(unsafe_code)]

use crate::addr::{Frame, FrameRange};
use crate::limits::BLOCK_FRAMES;
use crate::memmap::BlockState;
use crate::page_alloc::mapcount::MapCounts;
use crate::platform::FramePlatform;

/// Frames of a group where 4 KiB leaves map them.
const GROUP: usize = 64;

/// How many leaves mapped each of some frames, all of one block, at one moment.
#[derive(Clone, Copy, Debug)]
pub struct CountGroup {
    /// The frames.
    pub frames: FrameRange,
    /// Leaves of 2 MiB and 1 GiB, which map all of them.
    pub large: u64,
    small: [u32; GROUP],
    held: u64,
}

impl CountGroup {
    /// How many leaves of 4 KiB map a frame of the group.
    #[inline]
    pub fn small(&self, frame: Frame) -> u64 {
        // A larger group has no counts for each frame.
        if self.frames.count > GROUP as u64 { 0 } else { u64::from(self.small[self.place(frame)]) }
    }

    /// How many leaves of any size map a frame of the group.
    #[inline]
    pub fn leaves(&self, frame: Frame) -> u64 {
        self.small(frame) + self.large
    }

    /// Whether something besides leaves owns a frame of the group.
    #[inline]
    pub fn is_held(&self, frame: Frame) -> bool {
        self.held >> self.place(frame) & 1 == 1
    }

    fn place(&self, frame: Frame) -> usize {
        frame.index_in_block() % GROUP
    }
}

impl<P: FramePlatform> MapCounts<'_, P> {
    /// The counts of the 64 aligned frames around `frame`, or of its whole block where no leaf of 4 KiB maps
    /// any of it. `None` where there is no memory.
    pub(crate) fn count_group(&self, frame: Frame) -> Option<CountGroup> {
        let block = self.frames().memmap.get_around(frame)?;
        let (index, first) = (frame.index_in_block() / GROUP * GROUP, frame.block().first_frame());
        block.lock(self.platform());
        let mut small = [0; GROUP];
        let lanes = Some(block.small_maps(self.platform())).filter(|lanes| lanes.any());
        if let Some(lanes) = lanes {
            small.iter_mut().enumerate().for_each(|(at, count)| *count = lanes.get(index + at));
        }
        let whole = matches!(block.state(), BlockState::Folio | BlockState::FolioTail);
        let held = match whole {
            true if block.held.contains(0) => u64::MAX,
            true => 0,
            false => block.held.word(index / GROUP),
        };
        let large = self.large_leaves(frame, block);
        block.unlock(self.platform());
        let frames = match lanes {
            None if whole => FrameRange::new(first, BLOCK_FRAMES as u64),
            _ => FrameRange::new(first.add(index as u64), GROUP as u64),
        };
        Some(CountGroup { frames, large, small, held })
    }
}
