//! Between which frames the machine's memory lies, and that of each zone.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use crate::addr::{BlockNumber, Frame, FrameRange};
use crate::limits::BLOCK_FRAMES;
use crate::memmap::{Block, BlockState};
use crate::page_alloc::allocator::PageAllocator;
use crate::page_alloc::request::gfp::ZoneKind;
use crate::platform::FramePlatform;

impl<P: FramePlatform> PageAllocator<'_, P> {
    /// The whole blocks from the first to the last in which a zone has frames to hand out; blocks of other zones
    /// between them are included. Reads the record of every block.
    pub fn zone_span(&self, node: u8, kind: ZoneKind) -> FrameRange {
        let Some(zone) = self.zones().find(|zone| zone.node == node && zone.kind == kind) else {
            return FrameRange::new(Frame(0), 0);
        };
        let is_used = |state| matches!(state, BlockState::Small | BlockState::Folio | BlockState::FolioTail);
        // Blocks at the edges of memory belong to no region.
        let in_pieces = |(_, block): &(BlockNumber, &Block)| {
            is_used(block.state()) && block.zone() == usize::from(zone.number)
        };
        let edges = self.frames().memmap.blocks().filter(in_pieces).map(|(number, _)| (number.0, number.0 + 1));
        let regions = zone.pools.iter().map(|pool| {
            let (first, count) = pool.lock(self.platform()).region();
            (first.0, first.0 + count)
        });
        let join = |(first, end): (u32, u32), part: (u32, u32)| (first.min(part.0), end.max(part.1));
        let (first, end) = edges.chain(regions).reduce(join).unwrap_or((0, 0));
        FrameRange::new(BlockNumber(first).first_frame(), u64::from(end - first) * BLOCK_FRAMES as u64)
    }

    /// The frame behind the last block of the machine's memory. Reads the record of every block.
    pub fn end_of_memory(&self) -> Frame {
        let present = |(_, block): &(BlockNumber, &Block)| block.state() != BlockState::Absent;
        let last = self.frames().memmap.blocks().filter(present).last();
        // Memory that was added later has records only for what is there.
        let some = self.present.load(Ordering::Relaxed) > 0;
        last.filter(|_| some).map_or(Frame(0), |(number, _)| number.add(1).first_frame())
    }
}
