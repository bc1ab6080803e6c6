//! Walks the whole state of the allocator, at rest, and checks it against the invariants.

use core::sync::atomic::Ordering;

use super::PageAllocator;
use super::pcp::order_of;
use super::shard::ShardIndex;
use super::zone::Zone;
use crate::addr::{BlockNumber, Frame};
use crate::limits::BLOCK_FRAMES;
use crate::memmap::{Block, BlockState, DescriptorFlags, FrameMask};
use crate::platform::Platform;

/// What [`PageAllocator::validate`] found broken, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// The record's count of free frames is not what its bitmap says.
    FreeCount(BlockNumber),
    /// The record's largest free order is not what its bitmap says.
    FreeOrder(BlockNumber),
    /// The block is not on the list that its state asks for.
    Listed(BlockNumber),
    /// A free frame is marked as a folio's start, as held, or has a map count (invariants 1 and 5).
    FreeInUse(BlockNumber),
    /// A frame is marked as needing no check when freed, but is free, mapped, held or part of a larger folio.
    Plain(BlockNumber),
    /// A whole block's record is not all zero, or its pool's bit disagrees.
    Whole(BlockNumber),
    /// A folio's blocks disagree about it.
    Folio(BlockNumber),
    /// A frame on a per-CPU list is not in use, or not marked as listed (invariant 1).
    List(Frame),
    /// A zone's counters are not what its blocks say (invariant 8).
    ZoneCount {
        /// The zone's index.
        zone: u8,
        /// Free frames as counted.
        counted: u64,
        /// Free frames as found.
        found: u64,
    },
}

impl<P: Platform> PageAllocator<'_, P> {
    /// Checks everything that can be checked while nothing is under way.
    ///
    /// # Errors
    /// The first [`Violation`] found.
    pub fn validate(&self) -> Result<(), Violation> {
        for (number, block) in self.memmap.blocks() {
            match block.state() {
                BlockState::Small => self.validate_small(number, block)?,
                BlockState::Whole => self.validate_whole(number, block)?,
                BlockState::Folio => self.validate_folio(number, block)?,
                _ => {}
            }
        }
        self.validate_lists()?;
        self.zones.iter().try_for_each(|zone| self.validate_zone(zone))
    }

    fn validate_small(&self, number: BlockNumber, block: &Block) -> Result<(), Violation> {
        let ensure = |holds, violation| if holds { Ok(()) } else { Err(violation) };
        let free = FrameMask::ALL.without(block.used.load());
        ensure(
            usize::from(block.free.load(Ordering::Relaxed)) == free.count(),
            Violation::FreeCount(number),
        )?;
        ensure(
            block.free_order.load(Ordering::Relaxed) == free.largest_group(),
            Violation::FreeOrder(number),
        )?;
        let listed = block.listed.load(Ordering::Relaxed) == ShardIndex::wanted_list(block);
        ensure(listed, Violation::Listed(number))?;
        let mapped = block.lanes(self.platform).map_or(FrameMask::EMPTY, |lanes| lanes.nonzero());
        let in_use = block.heads.load().union(block.held.load()).union(mapped);
        ensure(free.intersection(in_use).is_empty(), Violation::FreeInUse(number))?;
        let plain = (0..BLOCK_FRAMES).filter(|&index| block.plain.contains(index));
        let mut wrong = plain.filter(|&index| !block.is_folio(index, 1) || mapped.contains(index));
        ensure(wrong.next().is_none(), Violation::Plain(number))
    }

    fn validate_whole(&self, number: BlockNumber, block: &Block) -> Result<(), Violation> {
        let zeroed = block.descriptors().is_none()
            && block.lanes_at().is_none()
            && block.used.load().is_empty()
            && block.large_maps.load(Ordering::Relaxed) == 0
            && block.folio_maps.load(Ordering::Relaxed) == 0;
        let pooled = self
            .zones
            .iter()
            .flat_map(|zone| zone.pools.iter())
            .filter(|pool| pool.lock(self.platform).is_free(number))
            .count();
        if zeroed && pooled == 1 { Ok(()) } else { Err(Violation::Whole(number)) }
    }

    fn validate_folio(&self, number: BlockNumber, block: &Block) -> Result<(), Violation> {
        let order = block.order.load(Ordering::Relaxed);
        let blocks = 1u32 << (order - crate::limits::BLOCK_ORDER);
        let aligned = number.0.is_multiple_of(blocks);
        let tails = (1..blocks).all(|tail| {
            let tail = self.memmap.block(number.add(tail));
            tail.state() == BlockState::FolioTail && tail.order.load(Ordering::Relaxed) == order
        });
        if aligned && tails { Ok(()) } else { Err(Violation::Folio(number)) }
    }

    fn validate_lists(&self) -> Result<(), Violation> {
        for cpu in self.cpus.iter() {
            for (number, list) in
                cpu.lists.iter().enumerate().map(|(at, list)| (at % super::pcp::LISTS, list))
            {
                for frame in list.frames() {
                    let block = self.memmap.block(frame.block());
                    let holds = if order_of(number) == crate::addr::Order::BLOCK {
                        block.state() == BlockState::Listed
                    } else {
                        self.check_small(block, frame, order_of(number)).is_ok()
                            && self
                                .memmap
                                .descriptor_in(self.platform, block, frame)
                                .has(DescriptorFlags::LISTED)
                    };
                    if !holds {
                        return Err(Violation::List(frame));
                    }
                }
            }
        }
        Ok(())
    }

    fn validate_zone(&self, zone: &Zone) -> Result<(), Violation> {
        let small: u64 = self
            .memmap
            .blocks()
            .filter(|(_, block)| {
                block.state() == BlockState::Small && block.zone() == usize::from(zone.number)
            })
            .map(|(_, block)| u64::from(block.free.load(Ordering::Relaxed)))
            .sum();
        let mut whole = 0;
        for pool in zone.pools.iter() {
            let pool = pool.lock(self.platform);
            if pool.free != pool.count_free() {
                return Err(Violation::ZoneCount {
                    zone: zone.number,
                    counted: pool.free.into(),
                    found: pool.count_free().into(),
                });
            }
            whole += u64::from(pool.free) * BLOCK_FRAMES as u64;
        }
        let (counted, found) = (zone.free_frames(), small + whole);
        if counted == found {
            Ok(())
        } else {
            Err(Violation::ZoneCount { zone: zone.number, counted, found })
        }
    }
}
