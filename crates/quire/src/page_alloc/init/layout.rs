//! Which memory belongs to which zone, and in which order each node's CPUs try the zones.

use core::sync::atomic::AtomicU8;

use crate::addr::{Frame, FrameRange};
use crate::error::InitError;
use crate::limits::{BLOCK_FRAMES, FRAME_SIZE, MAX_NODES};
use crate::memmap::{BootMemory, BootSlice};
use crate::nodes::NodeSet;
use crate::page_alloc::init::config::{AllocatorConfig, MemoryRange};
use crate::page_alloc::request::gfp::{KINDS, ZoneKind};
use crate::page_alloc::request::placement::Placement;
use crate::page_alloc::store::zone::OwnLine;
use crate::platform::FramePlatform;

const DMA32_END: Frame = Frame((4 << 30) / FRAME_SIZE);

/// Where each node's zones begin and end.
pub(in crate::page_alloc) struct Layout<'r> {
    pub(in crate::page_alloc) ranges: &'r [MemoryRange],
    /// A bit for each range that is not there at start-up.
    late: u64,
    pub(in crate::page_alloc) nodes: usize,
    /// Whether zeroes that were promised are remembered.
    pub(in crate::page_alloc) remember_zeroes: bool,
    /// The first frame of each node's Movable zone, a multiple of a block.
    movable: [Frame; MAX_NODES],
}

impl<'r> Layout<'r> {
    pub(in crate::page_alloc) fn new(
        ranges: &'r [MemoryRange],
        late: u64,
        nodes: usize,
        config: &AllocatorConfig,
    ) -> Self {
        let mut layout = Self {
            ranges,
            late,
            nodes,
            remember_zeroes: config.zeroes.remember,
            movable: [Frame(u64::MAX); MAX_NODES],
        };
        for node in 0..nodes {
            layout.movable[node] = layout.movable_start(node as u8, config.movable_percent.min(100));
        }
        layout
    }

    /// The frame at which the last `percent` of a node's memory start.
    fn movable_start(&self, node: u8, percent: u8) -> Frame {
        let of_node = || self.ranges.iter().filter(|range| range.node == node);
        let total: u64 = of_node().map(|range| range.frames.count).sum();
        let mut wanted = total * u64::from(percent) / 100;
        for range in of_node().rev() {
            if wanted < BLOCK_FRAMES as u64 {
                break;
            }
            if range.frames.count >= wanted {
                return Frame((range.frames.end().0 - wanted).next_multiple_of(BLOCK_FRAMES as u64));
            }
            wanted -= range.frames.count;
        }
        if wanted < BLOCK_FRAMES as u64 { Frame(u64::MAX) } else { Frame(0) }
    }

    /// The index of a frame's zone.
    pub(in crate::page_alloc) fn zone_of(&self, frame: Frame, node: u8) -> usize {
        let kind = if frame.block().first_frame() >= self.movable[usize::from(node)] {
            ZoneKind::Movable
        } else if frame < DMA32_END {
            ZoneKind::Dma32
        } else {
            ZoneKind::Normal
        };
        usize::from(node) * KINDS + kind as usize
    }

    /// The frames of each range that belong to a zone. Zones end at multiples of a block.
    pub(in crate::page_alloc) fn pieces(&self, zone: usize) -> impl Iterator<Item = FrameRange> + '_ {
        let (node, kind) = ((zone / KINDS) as u8, zone % KINDS);
        let movable = self.movable[usize::from(node)];
        let (from, to) = match kind {
            0 => (Frame(0), DMA32_END.min(movable)),
            1 => (DMA32_END, movable),
            _ => (movable, Frame(u64::MAX)),
        };
        self.ranges.iter().filter(move |range| range.node == node).filter_map(move |range| {
            let (start, end) = (range.frames.start.max(from), range.frames.end().min(to));
            (start < end).then(|| FrameRange::new(start, end.0 - start.0))
        })
    }

    /// Those of [`Self::pieces`] that are there at start-up.
    pub(in crate::page_alloc) fn present_pieces(&self, zone: usize) -> impl Iterator<Item = FrameRange> + '_ {
        let late = move |piece: &FrameRange| {
            let at = self.ranges.iter().position(|range| range.frames.contains(piece.start));
            at.is_some_and(|at| self.late >> at & 1 == 1)
        };
        self.pieces(zone).filter(move |piece| !late(piece))
    }

    /// Frames of a zone that are there at start-up.
    pub(in crate::page_alloc) fn present_in(&self, zone: usize) -> u64 {
        self.present_pieces(zone).map(|piece| piece.count).sum()
    }

    pub(in crate::page_alloc) fn frames_in(&self, zone: usize) -> u64 {
        self.pieces(zone).map(|piece| piece.count).sum()
    }

    /// The order in which each node's CPUs look for memory.
    pub(in crate::page_alloc) fn build_placement<P: FramePlatform>(
        &self,
        boot: &mut BootMemory<'_, P>,
        platform: &P,
    ) -> Result<Placement, InitError> {
        let nearest = boot.table(0, self.nodes * KINDS, |boot, index| {
            self.build_nearest(boot, platform, index / KINDS, index % KINDS)
        })?;
        let turns = boot.table(0, platform.cpu_count(), |_, cpu| {
            // Each CPU's turns start at another node.
            Ok(OwnLine(AtomicU8::new((cpu % MAX_NODES) as u8)))
        })?;
        let present = self.ranges.iter().filter(|range| range.frames.count > 0);
        let with_memory: NodeSet = present.map(|range| range.node).collect();
        Ok(Placement { nearest, with_memory, turns })
    }

    /// The zones for requests that start at `node` and may use `kind`: the nearest node first, in each the
    /// highest kind first. Nodes at the same distance come in the order of their numbers, starting behind
    /// `node` and going round, so that nodes that run short do not all turn to the same one.
    fn build_nearest<P: FramePlatform>(
        &self,
        boot: &mut BootMemory<'_, P>,
        platform: &P,
        node: usize,
        kind: usize,
    ) -> Result<BootSlice<u8>, InitError> {
        let mut nodes: [usize; MAX_NODES] = core::array::from_fn(|other| other);
        let nodes = &mut nodes[..self.nodes];
        nodes.sort_unstable_by_key(|&other| {
            let distance = platform.node_distance(node as u8, other as u8);
            (other != node, distance, (other + self.nodes - node) % self.nodes)
        });
        let zones = nodes
            .iter()
            .flat_map(|near| (0..=kind).rev().map(move |kind| near * KINDS + kind))
            .filter(|&zone| self.frames_in(zone) > 0);
        boot.table(node as u8, zones.clone().count(), |_, index| {
            Ok(zones.clone().nth(index).unwrap_or(0) as u8)
        })
    }
}
