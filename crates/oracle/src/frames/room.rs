//! The memory that a machine can allocate, found by emptying a second machine of the same shape: an answer
//! "out of memory" is checked and not believed.

use hosted::raw::RawPages;
use quire::addr::{BlockNumber, Frame, FrameRange, Order};
use quire::page_alloc::{Gfp, NodePolicy, NodeSet, PageAllocator, Urgency, ZoneKind};

use hosted::Hosted;

use super::{FrameModel, FrameShape};

/// The zone of a frame or a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Zone {
    kind: ZoneKind,
    node: u8,
}

/// Everything that can be allocated from an empty machine.
#[derive(Clone, Debug, Default)]
pub struct Room {
    /// Each frame that can be allocated by itself, in ascending order.
    frames: Vec<(u64, Zone)>,
    /// Each block that can be allocated whole, with its range's number, in ascending order.
    blocks: Vec<(u32, Zone, usize)>,
}

/// A requested run of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockRun {
    /// How many.
    pub blocks: u32,
    /// The first one's number is a multiple of this.
    pub align: u32,
}

impl BlockRun {
    /// The blocks of a folio.
    pub fn of(order: Order) -> Self {
        let blocks = (order.frames() / Order::BLOCK.frames()) as u32;
        Self { blocks, align: blocks }
    }
}

impl Room {
    /// Empties an allocator of a machine of this shape; the running thread is one of its CPUs.
    pub fn survey(shape: &FrameShape, allocator: &PageAllocator<'_, Hosted>) -> Self {
        let mut room = Self::default();
        let take = |gfp, order| std::iter::from_fn(move || allocator.alloc_raw(gfp, order).ok());
        let request = |node, kind| Gfp {
            zone: kind,
            urgency: Urgency::Reserve,
            nodes: NodePolicy::Bind(NodeSet::one(node)),
            ..Gfp::USER
        };
        for node in 0..shape.nodes() {
            for kind in [ZoneKind::Dma32, ZoneKind::Normal, ZoneKind::Movable] {
                let found = take(request(node, kind), Order::FRAME);
                room.frames.extend(found.map(|frame| (frame.0, Zone { kind, node })));
            }
        }
        room.frames.sort_unstable_by_key(|&(frame, _)| frame);
        for &(frame, _) in &room.frames {
            allocator.free_raw(Frame(frame), Order::FRAME).expect("it was handed out");
        }
        allocator.lists().drain_local();
        for node in 0..shape.nodes() {
            for frame in take(request(node, ZoneKind::Movable), Order::BLOCK) {
                let zone = room.zone_of(Frame(frame.0 + 100)).expect("its frames can be had as well");
                let range = shape.ranges.iter().position(|range| range.frames.contains(frame));
                room.blocks.push((frame.block().0, zone, range.expect("it is memory")));
            }
        }
        room.blocks.sort_unstable_by_key(|&(block, ..)| block);
        room
    }

    /// The zone of a frame: that of other frames of its block, since it may have held descriptors.
    fn zone_of(&self, frame: Frame) -> Option<Zone> {
        let first = frame.block().first_frame().0;
        let at = self.frames.partition_point(|&(other, _)| other < first);
        let &(other, zone) = self.frames.get(at)?;
        (Frame(other).block() == frame.block()).then_some(zone)
    }

    /// The kind of the zone that a frame can be allocated from.
    pub fn kind_of(&self, frame: Frame) -> Option<ZoneKind> {
        self.zone_of(frame).map(|zone| zone.kind)
    }

    /// A folio below a block's size that could be allocated from a zone up to `kind` of one of `nodes`.
    pub fn fits(&self, model: &FrameModel, order: Order, kind: ZoneKind, nodes: NodeSet) -> Option<Frame> {
        let mut run = 0;
        let mut next = 0;
        self.frames.iter().find_map(|&(frame, zone)| {
            let there = model.is_memory(Frame(frame), Order::FRAME) && model.holder(Frame(frame)).is_none();
            let free = zone.kind <= kind && nodes.contains(zone.node) && there;
            run = match (free, frame == next) {
                (false, _) => 0,
                (true, true) => run + 1,
                (true, false) => 1,
            };
            next = frame + 1;
            (run >= order.frames() && next.is_multiple_of(order.frames()))
                .then(|| Frame(next - order.frames()))
        })
    }

    /// The parts of a range of whole blocks that lie in one zone each.
    pub fn by_zone(&self, range: FrameRange) -> Vec<FrameRange> {
        let mut parts: Vec<FrameRange> = Vec::new();
        for piece in range.by_block() {
            match parts.last_mut() {
                Some(last) if self.zone_of(last.start) == self.zone_of(piece.start) => {
                    last.count += piece.count
                }
                _ => parts.push(piece),
            }
        }
        parts
    }

    /// Whether all blocks of a range could be handed out whole.
    pub fn holds_blocks(&self, model: &FrameModel, range: FrameRange) -> bool {
        range.by_block().all(|piece| {
            let number = piece.start.block();
            let known = self.blocks.binary_search_by_key(&number.0, |&(block, ..)| block).is_ok();
            known
                && model.is_memory(number.first_frame(), Order::BLOCK)
                && !model.touches(number.first_frame())
        })
    }

    /// A run of blocks that could be allocated from a zone up to `kind` of one of `nodes`.
    pub fn run_fits(
        &self,
        model: &FrameModel,
        want: BlockRun,
        kind: ZoneKind,
        nodes: NodeSet,
    ) -> Option<BlockNumber> {
        self.run_in(model, want, |zone| zone.kind <= kind && nodes.contains(zone.node))
    }

    /// Whether a zone up to a kind of one of some nodes has more free than it may keep of its frames, and the wanted run
    /// besides, in whole blocks. Some of them may hold `records` of the allocator, one frame each.
    pub fn has_plenty(
        &self,
        model: &FrameModel,
        want: BlockRun,
        (kind, nodes): (ZoneKind, NodeSet),
        records: u64,
        kept: impl Fn(u64) -> u64,
    ) -> bool {
        let eligible = |zone: &Zone| zone.kind <= kind && nodes.contains(zone.node);
        let mut zones: Vec<Zone> = self.blocks.iter().map(|&(_, zone, _)| zone).filter(eligible).collect();
        zones.dedup();
        zones.into_iter().any(|zone| {
            let frames = self.frames.iter().filter(|&&(_, of)| of == zone).count() as u64;
            let blocks = self.blocks.iter().filter(|&&(block, of, _)| of == zone && is_free(model, block));
            let (blocks, wanted) = (blocks.count() as u64, u64::from(want.blocks));
            let spare = blocks.saturating_sub(wanted + records) * Order::BLOCK.frames();
            let run = wanted == 1 || records == 0 && self.run_in(model, want, |of| of == zone).is_some();
            run && spare > kept(frames)
        })
    }

    /// A free run of blocks in a zone that `eligible` accepts.
    fn run_in(
        &self,
        model: &FrameModel,
        want: BlockRun,
        eligible: impl Fn(Zone) -> bool,
    ) -> Option<BlockNumber> {
        let free = |&(block, zone, _): &(u32, Zone, usize)| eligible(zone) && is_free(model, block);
        self.blocks.windows(want.blocks as usize).find_map(|run| {
            let ((first, zone, range), last) = (run[0], run[run.len() - 1]);
            let in_a_row = last.0 - first + 1 == want.blocks && (last.1, last.2) == (zone, range);
            let fits = first.is_multiple_of(want.align) && in_a_row && run.iter().all(free);
            fits.then_some(BlockNumber(first))
        })
    }
}

/// Whether a block is memory, of which nothing is handed out.
fn is_free(model: &FrameModel, block: u32) -> bool {
    let first = BlockNumber(block).first_frame();
    model.is_memory(first, Order::BLOCK) && !model.touches(first)
}
