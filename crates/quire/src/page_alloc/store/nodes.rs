//! Which zone and node memory belongs to.
#![forbid(unsafe_code)]

use crate::addr::{BlockNumber, Frame, Order};
use crate::cpu::CpuId;
use crate::page_alloc::request::gfp::ZoneKind;
use crate::page_alloc::store::Store;
use crate::page_alloc::store::zone::Zone;
use crate::platform::FramePlatform;
use crate::stats::Stat;

impl<P: FramePlatform> Store<'_, P> {
    #[inline]
    pub(in crate::page_alloc) fn count_alloc(&self, cpu: CpuId, zone: usize, frames: u64) {
        let stat = match self.zones[zone].kind {
            ZoneKind::Dma32 => Stat::PgallocDma32,
            ZoneKind::Normal => Stat::PgallocNormal,
            ZoneKind::Movable => Stat::PgallocMovable,
        };
        self.frames.cells(cpu).add(stat, frames);
    }

    /// The node of a block of memory. Slow: it asks the zones' pools.
    #[cfg(feature = "published")]
    pub(crate) fn node_of_block(&self, number: BlockNumber) -> Option<u8> {
        self.zone_around(number).map(|zone| zone.node)
    }

    /// The node that a frame belongs to.
    pub fn node_of_frame(&self, frame: Frame) -> u8 {
        self.zones[self.frames.memmap.block(frame.block()).zone()].node
    }

    /// Free frames of a zone known to be zero, apart from those on lists.
    pub(in crate::page_alloc) fn zeroed_frames(&self, zone: &Zone) -> u64 {
        zone.zeroed_blocks(self.frames.platform) * Order::BLOCK.frames() + zone.zeroed_pieces()
    }

    /// The zone with a block in one of its regions, whether that is present or not.
    pub(in crate::page_alloc) fn zone_around(&self, number: BlockNumber) -> Option<&Zone> {
        let spans =
            |zone: &&Zone| zone.pools.iter().any(|pool| pool.lock(self.frames.platform).spans(number));
        self.zones.iter().find(spans)
    }
}
