//! Memory failure: a frame that went bad is lost for ever, and nothing else with it.
//!
//! In a block in small pieces a bad frame is used and held, starts no folio, and has the state
//! [`FrameState::BAD`]. The block has one frame less and is never whole again. A folio of whole blocks has no
//! states of single frames. It marks a bad frame in its block's map of used frames, which such a folio does
//! not need otherwise. When the folio is freed, blocks with marks come back in small pieces, and the others
//! as they are. Marks are made under the block's lock. A folio with a mark is freed on the slow path.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use crate::addr::{Frame, Order};
use crate::limits::BLOCK_FRAMES;
use crate::memmap::{Block, BlockState, DescriptorFlags, FrameMask, FrameState};
use crate::page_alloc::allocator::PageAllocator;
use crate::page_alloc::frames::bad::is_lost;
use crate::page_alloc::frames::state::head_of;
use crate::page_alloc::request::gfp::Mobility;
use crate::platform::{Event, FramePlatform};

/// How often to look for a frame that is moving from one place to another.
const ROUNDS: usize = 16;

/// What memory failure must do about a frame that went bad.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Nothing: it was free, or in a [`BlockReservation`](crate::page_alloc::BlockReservation), and is lost.
    Lost,
    /// It belongs to an unmapped folio of whole blocks, and is marked: it is lost when the folio is freed.
    Marked,
    /// It belongs to a page of a pool of huge pages, and is marked.
    Huge,
    /// It was lost or marked before.
    Already,
    /// Leaves map it, and it is not held.
    Anonymous,
    /// It is held: page cache, or anonymous memory that is pinned or moves.
    Held,
    /// It is moving between owners, lists and the store.
    Busy,
    /// The manager needs it for page tables, small objects or descriptors. There is no remedy.
    Unrecoverable,
    /// There is no such frame.
    NotMemory,
}

impl<P: FramePlatform> PageAllocator<'_, P> {
    /// Handles a frame that went bad. If it is free it is lost, wherever it is. If it belongs to a page of a
    /// pool, or to a folio of whole blocks that no leaf maps, it is marked. Otherwise nothing changes. Not
    /// from an interrupt; the caller holds no lock.
    ///
    /// A kernel with address spaces calls
    /// [`MemoryManager::memory_failure`](crate::manager::MemoryManager::memory_failure) instead. Only after
    /// such a call does a fault that maps a marked folio take its bad frames out of use. Otherwise they stay
    /// marked until the folio is freed.
    pub fn condemn(&self, frame: Frame) -> Verdict {
        let Some(block) = self.frames().memmap.get_around(frame) else { return Verdict::NotMemory };
        for round in 1..=ROUNDS {
            let verdict = self.frames().in_store(|| match block.state() {
                BlockState::Small => self.condemn_small(frame, block, round == ROUNDS),
                BlockState::Folio | BlockState::FolioTail => self.condemn_part(frame, block),
                BlockState::Whole => self.condemn_whole(frame),
                BlockState::Listed => Verdict::Busy,
                BlockState::Metadata => Verdict::Unrecoverable,
                BlockState::Absent => Verdict::NotMemory,
            });
            if verdict != Verdict::Busy {
                if matches!(verdict, Verdict::Lost | Verdict::Marked | Verdict::Huge) {
                    self.platform().event(Event::BadMemory { frame });
                }
                return verdict;
            }
            self.lists().drain_all();
            self.platform().reschedule_point();
        }
        Verdict::Busy
    }

    /// As [`Self::condemn`] for a block in small pieces; `last`: there is no round after this one.
    fn condemn_small(&self, frame: Frame, block: &Block, last: bool) -> Verdict {
        let index = frame.index_in_block();
        block.lock(self.platform());
        let maps = block.small_maps(self.platform());
        let state = block.columns().map_or(FrameState::UNKNOWN, |columns| columns.state(index));
        let verdict = if block.state() != BlockState::Small {
            Verdict::Busy
        } else if is_lost(block, index) {
            Verdict::Already
        } else if !block.used.contains(index) {
            self.store().lose_free(frame.block(), block, index);
            Verdict::Lost
        } else if maps.get(index) > 0 && !block.held.contains(index) {
            Verdict::Anonymous
        } else if block.held.contains(index) {
            if self.frames().is_managers(frame, block) { Verdict::Unrecoverable } else { Verdict::Held }
        } else if state == FrameState::UNCLAIMED && block.heads.contains(index) {
            // The state means something only where a folio starts.
            block.heads.remove_run(index, 1);
            block.held.insert_run(index, 1);
            self.frames().lose(block, index);
            Verdict::Lost
        } else if !last
            || self.frames().is_listed(block, index, state)
            || block.mobility() == Mobility::Movable as u8
        {
            // On a list, or handed out and about to be mapped. A block of another group may have movable frames
            // too, so its frame is the manager's only if it stays so.
            Verdict::Busy
        } else {
            Verdict::Unrecoverable
        };
        block.unlock(self.platform());
        verdict
    }

    /// Handles a frame of a folio of whole blocks: marks it, and takes the mark off again where leaves map
    /// the folio. A task that maps a folio looks for marks after its leaf is counted
    /// ([`Frames::has_bad`](crate::page_alloc::Frames::has_bad)), so that one of the two sees the other.
    fn condemn_part(&self, frame: Frame, block: &Block) -> Verdict {
        let (number, index) = (frame.block(), frame.index_in_block());
        block.lock(self.platform());
        let part = matches!(block.state(), BlockState::Folio | BlockState::FolioTail);
        let known = part && block.used.contains(index);
        let order = block.order.load(Ordering::Relaxed);
        if part && !known {
            block.used.insert_run(index, 1);
            self.frames().note_bad(1);
        }
        block.unlock(self.platform());
        if !part || known {
            return if known { Verdict::Already } else { Verdict::Busy };
        }
        let head = self.frames().memmap.block(head_of(number, order.max(Order::BLOCK.get())));
        head.lock(self.platform());
        let same = head.state() == BlockState::Folio && head.order.load(Ordering::Relaxed) == order;
        let huge = same && head.folio().has(DescriptorFlags::HUGE);
        let held = same && !head.held.load().is_empty();
        let maps =
            head.folio_maps.load(Ordering::Acquire) != 0 || head.large_maps.load(Ordering::Relaxed) != 0;
        let mapped = maps || head.small_maps(self.platform()).any();
        head.unlock(self.platform());
        let verdict = match (same, huge, held, mapped) {
            (true, true, ..) => return Verdict::Huge,
            (true, false, false, false) => {
                self.force_slow_free(head);
                return Verdict::Marked;
            }
            (false, ..) => Verdict::Busy,
            (true, false, true, _) => Verdict::Held,
            (true, false, false, true) => Verdict::Anonymous,
        };
        match self.frames().unmark(frame) {
            true => verdict,
            false if self.frames().is_bad(frame) => Verdict::Lost,
            // The folio was split, and the mark forgotten: leaves may still map the frame.
            false => Verdict::Busy,
        }
    }

    /// Makes the next free of a marked folio take the slow path, which looks at its marks.
    fn force_slow_free(&self, head: &Block) {
        let forget = || {
            head.lock(self.platform());
            if head.state() == BlockState::Folio {
                FrameState::UNKNOWN.put(head.folio_state_cell());
            }
            head.unlock(self.platform());
        };
        forget();
        // A CPU may just have put it onto a list, and take it again before the lists are drained.
        self.lists().drain_all();
        forget();
    }

    fn condemn_whole(&self, frame: Frame) -> Verdict {
        let (number, memmap) = (frame.block(), &self.frames().memmap);
        // A free block of a range that is being emptied is collected, and is in no pool.
        let taken = self.store().zones.iter().find(|zone| {
            let mut pools = zone.pools.iter().map(|pool| pool.lock(self.platform()));
            pools.any(|mut pool| pool.take_exactly(number).is_some() || pool.take_collected(memmap, number))
        });
        let Some(zone) = taken else { return Verdict::Busy };
        zone.add_free(-(BLOCK_FRAMES as i64));
        self.frames().note_bad(1);
        self.store().put_in_pieces(zone, number, FrameMask::run(frame.index_in_block(), 1));
        Verdict::Lost
    }
}
