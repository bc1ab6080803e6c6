//! Moves memory together, so that whole blocks become free (Linux: `compact_nodes`).
//!
//! The blocks of a zone come in one round, those first of which least must move ([`search`](super::search)).
//! Each is emptied as if it were to be allocated, and then given back to the store. What leaves it goes where
//! any allocation of the same kind would: into the fullest block of the CPU's shard, and into a whole block
//! only when that shard has no room. So the first block that is emptied may gain nothing, and the next ones
//! fill what was split for it.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use crate::addr::{BlockNumber, FrameRange, Order};
use crate::limits::BLOCK_FRAMES;
use crate::nodes::NodeSet;
use crate::page_alloc::allocator::PageAllocator;
use crate::page_alloc::contig::search::ANY;
use crate::page_alloc::store::isolate::Shape;
use crate::page_alloc::store::isolated::WalkState;
use crate::page_alloc::store::zone::Zone;
use crate::platform::{Context, FramePlatform};

impl<P: FramePlatform> PageAllocator<'_, P> {
    /// Empties blocks of these nodes that are partly in use, as long as others have room for what is in them.
    /// `move_out` gets the range of a block up to [`CONTIG_ROUNDS`](crate::limits::CONTIG_ROUNDS) times and
    /// moves what it can, while no frame of it is allocated. Returns how many more whole blocks are free
    /// afterwards; what other tasks allocate and free meanwhile counts too. The caller holds no lock and is
    /// not pinned. Ends early when the task is dying, and does nothing in an interrupt.
    #[cold]
    pub fn compact(&self, nodes: NodeSet, mut move_out: impl FnMut(FrameRange)) -> u64 {
        if self.platform().context() != Context::Task {
            return 0;
        }
        let before = self.free_blocks_in_all();
        self.lists().drain_all();
        for zone in self.store().zones.iter().filter(|zone| nodes.contains(zone.node)) {
            self.frames().in_store(|| _ = self.store().merge_spares(zone));
            self.compact_zone(zone, &mut move_out);
        }
        self.free_blocks_in_all().saturating_sub(before)
    }

    /// Empties each block once that is partly in use, until others have no room for what is in one, or as
    /// many frames as two blocks have were moved without a gain: a block may have a frame that a device has
    /// pinned, which shows only when all others have left.
    fn compact_zone(&self, zone: &Zone, move_out: &mut impl FnMut(FrameRange)) {
        let mut round = WalkState { least: 1, most: 1, ..WalkState::default() };
        let (mut room, mut in_vain) = (self.room_on(zone.node), 0);
        while in_vain < 2 * BLOCK_FRAMES as u64 && !self.platform().is_dying() {
            // A folio of a whole block gains nothing by a move.
            let Some(number) = self.next_of_round(zone, ANY - 1, &mut round) else { return };
            let block = self.frames().memmap.block(number);
            // Its own free frames, and as many others as are in use.
            let Some(used) = self.store().cost_of(block) else { continue };
            let needed = used + u64::from(block.free.load(Ordering::Relaxed));
            if room < needed {
                room = self.room_on(zone.node);
            }
            if room < needed {
                return;
            }
            let before = self.free_blocks_in_all();
            if !self.empty_and_give_back(zone, number, move_out) {
                in_vain += used.saturating_sub(self.store().cost_of(block).unwrap_or(0));
                continue;
            }
            let gained = self.free_blocks_in_all() > before;
            room = if gained { room - needed } else { self.room_on(zone.node) };
            in_vain = if gained { 0 } else { in_vain + BLOCK_FRAMES as u64 };
        }
    }

    /// Empties a block and gives it back to the store; returns whether all of it became free. Others may
    /// isolate blocks of the zone before and afterwards: a run over all of a zone takes seconds.
    fn empty_and_give_back(
        &self,
        zone: &Zone,
        number: BlockNumber,
        move_out: &mut impl FnMut(FrameRange),
    ) -> bool {
        if !self.may_isolate(zone) {
            return false;
        }
        let shape = Shape { blocks: 1, align: 1, order: Order::BLOCK };
        self.store().isolate(zone, number, 1);
        let emptied = self.empty(zone, number, 1, move_out);
        self.store().end_isolation(zone, number, shape, false);
        zone.isolated.give_back();
        emptied
    }

    /// The free frames of a node in blocks that are partly in use, by movable memory if the store tells it
    /// from other.
    fn room_on(&self, node: u8) -> u64 {
        let zones = self.store().zones.iter().filter(|zone| zone.node == node);
        let (mut looked_at, mut free) = (0, 0);
        for zone in zones {
            for number in self.blocks_from(zone, BlockNumber(0), &mut looked_at) {
                let block = self.frames().memmap.block(number);
                let partly = |used| 0 < used && used < ANY.into();
                if self.store().serves_movable(block) && self.store().cost_of(block).is_some_and(partly) {
                    free += u64::from(block.free.load(Ordering::Relaxed));
                }
            }
        }
        free
    }

    fn free_blocks_in_all(&self) -> u64 {
        self.store().zones.iter().map(|zone| zone.whole_blocks(self.platform())).sum()
    }
}
