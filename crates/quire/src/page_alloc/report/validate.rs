//! Checks the whole state of the allocator, at rest, against the invariants.

use core::sync::atomic::Ordering;

use crate::addr::{BlockNumber, Frame, FrameRange, Order};
use crate::limits::{BLOCK_FRAMES, BLOCK_ORDER, SECTION_BLOCKS};
use crate::memmap::{Block, BlockState, Columns, FrameMask, FrameState, LISTS};
use crate::page_alloc::allocator::PageAllocator;
use crate::page_alloc::frames::bad::state_outside;
use crate::page_alloc::pcp::level::order_of;
use crate::page_alloc::store::pool::Pool;
use crate::page_alloc::store::shard::ShardIndex;
use crate::page_alloc::store::zone::Zone;
use crate::platform::FramePlatform;

/// What [`PageAllocator::validate`] found broken, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// The record's count of free frames is not what its bitmap says.
    FreeCount(BlockNumber),
    /// The record's capacity is not the number of frames that can be handed out.
    Capacity(BlockNumber),
    /// The record's largest free order is not what its bitmap says.
    FreeOrder(BlockNumber),
    /// The block is on no list, or on one where a search does not find its largest free group.
    Listed(BlockNumber),
    /// A free frame is marked as a folio's start, as held, or has a map count (invariants 1 and 5).
    FreeInUse(BlockNumber),
    /// A frame's state says that a folio which starts there needs no check when freed, but it is free,
    /// mapped, held or of another order; or a block in small pieces has no columns.
    State(BlockNumber),
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
    /// A frame in use of the block is marked as known to be zero, in the block's map or in its own state.
    Zeroed(BlockNumber),
    /// A zone's count of memory known to be zero is not what its blocks and pools say.
    ZeroedCount {
        /// The zone's index.
        zone: u8,
    },
    /// A zone's count of tainted blocks in an area is not what its blocks say: the area's first block. Or a block is
    /// tainted that is not in small pieces or in no area.
    Tainted(BlockNumber),
    /// A frame that is free and known to be zero is not.
    NotZero(Frame),
    /// What a zone's lists have booked is not what the zone says, or a list has parked more than it booked.
    Booked {
        /// The zone's index.
        zone: u8,
    },
}

impl<P: FramePlatform> PageAllocator<'_, P> {
    /// Checks everything that can be checked while nothing is under way.
    ///
    /// # Errors
    /// The first [`Violation`] found.
    pub fn validate(&self) -> Result<(), Violation> {
        for (number, block) in self.frames().memmap.blocks() {
            let offers = block.free_order.load(Ordering::Relaxed) != 0;
            match block.state() {
                BlockState::Small => self.validate_small(number, block)?,
                _ if offers => return Err(Violation::FreeOrder(number)),
                BlockState::Whole => self.validate_whole(number, block)?,
                BlockState::Folio => self.validate_folio(number, block)?,
                _ => {}
            }
        }
        self.validate_lists()?;
        self.store().zones.iter().try_for_each(|zone| self.validate_zone(zone))
    }

    fn validate_small(&self, number: BlockNumber, block: &Block) -> Result<(), Violation> {
        let free = FrameMask::ALL.without(block.used.load());
        ensure(
            usize::from(block.free.load(Ordering::Relaxed)) == free.count(),
            Violation::FreeCount(number),
        )?;
        ensure(
            block.free_order.load(Ordering::Relaxed) == free.largest_group().min(BLOCK_ORDER),
            Violation::FreeOrder(number),
        )?;
        ensure(!ShardIndex::hides(block), Violation::Listed(number))?;
        let mapped = block.small_maps(self.platform()).nonzero();
        let in_use = block.heads.load().union(block.held.load()).union(mapped);
        ensure(free.intersection(in_use).is_empty(), Violation::FreeInUse(number))?;
        let Some(columns) = block.columns() else { return Err(Violation::State(number)) };
        let outside = (0..BLOCK_FRAMES).filter(|&at| state_outside(block, at).is_some()).count();
        ensure(
            usize::from(block.capacity.load(Ordering::Relaxed)) == BLOCK_FRAMES - outside,
            Violation::Capacity(number),
        )?;
        let marked = |index| columns.state(index).is_zeroed() && !columns.state(index).is_free();
        let zeroed = block.zeroed().intersection(block.used.load()).is_empty();
        ensure(zeroed && !(0..BLOCK_FRAMES).any(marked), Violation::Zeroed(number))?;
        let right = |index: usize| {
            let in_use = |&order: &Order| columns.state(index) == FrameState::in_use(order);
            (0..9).filter_map(Order::new).find(in_use).is_none_or(|order| {
                let count = order.frames() as usize;
                block.is_folio(index, count) && FrameMask::run(index, count).intersection(mapped).is_empty()
            })
        };
        ensure((0..BLOCK_FRAMES).all(right), Violation::State(number))
    }

    fn validate_whole(&self, number: BlockNumber, block: &Block) -> Result<(), Violation> {
        let zeroed = block.columns().is_none()
            && block.lanes_at().is_none()
            && block.used.load().is_empty()
            && block.large_maps.load(Ordering::Relaxed) == 0
            && block.folio_maps.load(Ordering::Relaxed) == 0;
        let pooled = self
            .store()
            .zones
            .iter()
            .flat_map(|zone| zone.pools.iter())
            .filter(|pool| pool.lock(self.platform()).is_free(number))
            .count();
        ensure(zeroed && pooled == 1, Violation::Whole(number))
    }

    fn validate_folio(&self, number: BlockNumber, block: &Block) -> Result<(), Violation> {
        let order = block.order.load(Ordering::Relaxed);
        let blocks = 1u32 << (order - BLOCK_ORDER);
        let aligned = number.0.is_multiple_of(blocks);
        let tails = (1..blocks).all(|tail| {
            let tail = self.frames().memmap.block(number.add(tail));
            tail.state() == BlockState::FolioTail && tail.order.load(Ordering::Relaxed) == order
        });
        ensure(aligned && tails, Violation::Folio(number))
    }

    fn validate_lists(&self) -> Result<(), Violation> {
        let mut wrong = None;
        let mut check = |at: usize, frame: Frame| {
            if !self.is_listable(frame, order_of(at % LISTS)) {
                wrong = Some(frame);
            }
        };
        for level in self.lists().cpus.iter().flat_map(|cpu| &cpu.levels) {
            level.indexed().for_each(|(at, list)| list.frames().for_each(|frame| check(at, frame)));
        }
        let parked = self.lists().cpus.iter().flat_map(|cpu| cpu.levels[0].all_parked());
        for (at, list, parked) in parked {
            parked.each(self.platform(), list.capacity(), |frame| check(at, frame));
        }
        wrong.map_or(Ok(()), |frame| Err(Violation::List(frame)))
    }

    /// Whether a folio of this order may be on a list.
    fn is_listable(&self, frame: Frame, order: Order) -> bool {
        let block = self.frames().memmap.block(frame.block());
        if order == Order::BLOCK {
            block.state() == BlockState::Listed && FrameState::of(block.folio_state_cell()).is_free()
        } else {
            self.frames().check_small(block, frame, order).is_ok() && self.frames().is_marked_free(frame)
        }
    }

    fn validate_booked(&self, zone: &Zone) -> Result<(), Violation> {
        let parked = self.lists().cpus.iter().flat_map(|cpu| cpu.levels[0].all_parked());
        let of_zone = parked.filter(|(at, ..)| at / LISTS == usize::from(zone.number));
        let (mut booked, mut covered) = (0, true);
        for (at, list, parked) in of_zone {
            let magazines = parked.booked(self.platform());
            covered &= parked.count() <= magazines;
            booked += u64::from(magazines) * list.magazine_frames(order_of(at % LISTS));
        }
        let agrees = zone.booked.0.load(Ordering::Relaxed) == booked as i64;
        ensure(agrees && covered, Violation::Booked { zone: zone.number })
    }

    fn validate_zeroed(&self, zone: &Zone) -> Result<(), Violation> {
        let pieces: usize = self.small_blocks(zone).map(|block| block.zeroed().count()).sum();
        let agrees = |pool: &Pool| pool.zeroed as usize == pool.zeroed_blocks().count();
        let pools = zone.pools.iter().all(|pool| agrees(&pool.lock(self.platform())));
        let counted = zone.zeroed_pieces() == pieces as u64;
        ensure(counted && pools, Violation::ZeroedCount { zone: zone.number })
    }

    fn validate_areas(&self, zone: &Zone) -> Result<(), Violation> {
        let tainted = |block: &Block| block.columns().is_some_and(Columns::is_tainted);
        for (first, count) in zone.areas.tainted_blocks() {
            let numbers = (first.0..first.0 + SECTION_BLOCKS as u32).map(BlockNumber);
            let blocks = numbers.filter_map(|number| self.frames().memmap.get(number));
            let found = blocks.filter(|block| block.zone() == usize::from(zone.number) && tainted(block));
            ensure(found.count() == usize::from(count), Violation::Tainted(first))?;
        }
        let mut ours = self
            .frames()
            .memmap
            .blocks()
            .filter(|(_, block)| block.zone() == usize::from(zone.number) && tainted(block));
        ours.try_for_each(|(number, block)| {
            let right = block.state() == BlockState::Small && zone.areas.cover(number);
            ensure(right, Violation::Tainted(number))
        })
    }

    /// Reads all memory that is free and known to be zero, while nothing is under way.
    ///
    /// # Errors
    /// [`Violation::NotZero`]: the first frame that is not.
    pub fn verify_zeroes(&self) -> Result<(), Violation> {
        let check = |frames: FrameRange| match self.frames().first_nonzero(frames) {
            Some(at) => Err(Violation::NotZero(at.frame())),
            None => Ok(()),
        };
        for pool in self.store().zones.iter().flat_map(|zone| zone.pools.iter()) {
            let folio = |number: BlockNumber| FrameRange::folio(number.first_frame(), Order::BLOCK);
            pool.lock(self.platform()).zeroed_blocks().map(folio).try_for_each(check)?;
        }
        let small = self.frames().memmap.blocks().filter(|(_, block)| block.state() == BlockState::Small);
        for (number, block) in small {
            let first = number.first_frame();
            let run = |(start, count)| FrameRange::new(first.add(start as u64), count as u64);
            block.zeroed().runs().map(run).try_for_each(check)?;
        }
        let mut listed = Ok(());
        self.each_listed_zero(|folio| listed = listed.and_then(|()| check(folio)));
        listed
    }

    /// Frames on per-CPU lists that are known to be zero. No CPU uses the lists meanwhile.
    pub fn zeroed_on_lists(&self) -> u64 {
        let mut frames = 0;
        self.each_listed_zero(|folio| frames += folio.count);
        frames
    }

    /// Shows the folios on per-CPU lists that are known to be zero, parked ones included. At rest.
    fn each_listed_zero(&self, mut show: impl FnMut(FrameRange)) {
        let mut show = |at: usize, frame: Frame| {
            let block = self.frames().memmap.block(frame.block());
            if FrameState::of(self.frames().state_cell(block, frame)).is_zeroed() {
                show(FrameRange::folio(frame, order_of(at % LISTS)));
            }
        };
        for level in self.lists().cpus.iter().flat_map(|cpu| &cpu.levels) {
            level.indexed().for_each(|(at, list)| list.frames().for_each(|frame| show(at, frame)));
            for (at, list, parked) in level.all_parked() {
                parked.each(self.platform(), list.capacity(), |frame| show(at, frame));
            }
        }
    }

    fn small_blocks(&self, zone: &Zone) -> impl Iterator<Item = &Block> {
        let number = usize::from(zone.number);
        let ours = move |block: &&Block| block.state() == BlockState::Small && block.zone() == number;
        self.frames().memmap.blocks().map(|(_, block)| block).filter(ours)
    }

    fn validate_zone(&self, zone: &Zone) -> Result<(), Violation> {
        self.validate_booked(zone)?;
        self.validate_zeroed(zone)?;
        self.validate_areas(zone)?;
        let free = |block: &Block| u64::from(block.free.load(Ordering::Relaxed));
        let small: u64 = self.small_blocks(zone).map(free).sum();
        let ensure_count = |counted: u64, found: u64| {
            ensure(counted == found, Violation::ZoneCount { zone: zone.number, counted, found })
        };
        let mut whole = 0;
        for pool in zone.pools.iter() {
            let pool = pool.lock(self.platform());
            ensure_count(pool.free.into(), pool.count_free().into())?;
            whole += u64::from(pool.free) * BLOCK_FRAMES as u64;
        }
        ensure_count(zone.free_frames(), small + whole)
    }
}

fn ensure(holds: bool, violation: Violation) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(violation) }
}
