//! Frames that went bad: each is lost for ever, and nothing else with it.
//!
//! A bad frame of a block in small pieces is used and held, no folio starts there, and its state says [`FrameState::BAD`]; the
//! block has one frame less and is never whole again. In a folio of whole blocks, which are not looked at frame by frame, it
//! is a bit of its block's map of used frames, of which a folio has no other need: when the folio is freed, the blocks with such
//! bits come back in small pieces, and the others as they are. Marks are made under the block's lock; a folio that
//! has one is freed on the slow path.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use crate::addr::{BlockNumber, Frame, Order};
use crate::limits::{BLOCK_FRAMES, DESCRIPTOR_FRAMES, FRAME_SIZE};
use crate::memmap::{Block, BlockState, DescriptorFlags, FrameMask, FrameState, MemMap};
use crate::page_alloc::allocator::PageAllocator;
use crate::page_alloc::mapcount::origins::Origin;
use crate::page_alloc::mapcount::state::head_of;
use crate::page_alloc::request::gfp::Mobility;
use crate::page_alloc::store::capacity::AREA;
use crate::page_alloc::store::zeroed as zeroes;
use crate::page_alloc::store::zone::Zone;
use crate::platform::{Event, FramePlatform};
use crate::stats::Stat;

/// Times that a frame on its way from one place to another is looked for.
const ROUNDS: usize = 16;

/// What is to be done about a frame that went bad.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Nothing: it was free, or not yet taken of a [`BlockReservation`](super::reservation::BlockReservation), and is lost.
    Lost,
    /// It belongs to a folio of whole blocks that no leaf maps, and is marked: it is lost when the folio is freed.
    Marked,
    /// It belongs to a page of a pool, and is marked.
    Huge,
    /// It was lost, or marked, before.
    Already,
    /// Leaves map it, and it is not held.
    Anonymous,
    /// It is held: page cache, or anonymous memory that is pinned or moves.
    Held,
    /// It is on its way somewhere.
    Busy,
    /// The manager needs it: page tables, small objects, descriptors. There is no remedy.
    Unrecoverable,
    /// There is no such frame.
    NotMemory,
}

impl<P: FramePlatform> PageAllocator<'_, P> {
    /// How many frames went bad.
    #[inline]
    pub fn bad_frames(&self) -> u64 {
        self.bad.load(Ordering::SeqCst)
    }

    /// A frame went bad. If it is free it is lost, wherever it is; if it belongs to a folio of whole blocks that no
    /// leaf maps it is marked; else nothing is done. Not from an interrupt; the caller holds no lock.
    pub fn condemn(&self, frame: Frame) -> Verdict {
        let Some(block) = self.memmap.get(frame.block()) else { return Verdict::NotMemory };
        for _ in 0..ROUNDS {
            let verdict = self.in_store(|| match block.state() {
                BlockState::Small => self.condemn_small(frame, block),
                BlockState::Folio | BlockState::FolioTail => self.condemn_part(frame, block),
                BlockState::Whole => self.condemn_whole(frame),
                BlockState::Listed => Verdict::Busy,
                BlockState::Metadata => Verdict::Unrecoverable,
                BlockState::Absent => Verdict::NotMemory,
            });
            if verdict != Verdict::Busy {
                if matches!(verdict, Verdict::Lost | Verdict::Marked | Verdict::Huge) {
                    self.platform.event(Event::BadMemory { frame });
                }
                return verdict;
            }
            self.drain_all();
            self.platform.reschedule_point();
        }
        Verdict::Busy
    }

    /// Makes a frame that the caller holds, that no leaf maps, and that is a folio by itself, a bad one.
    pub fn bury(&self, frame: Frame) {
        let (block, index) = (self.memmap.block(frame.block()), frame.index_in_block());
        block.lock(self.platform);
        debug_assert!(block.held.contains(index) && block.folio_frames(index) == 1);
        block.heads.remove_run(index, 1);
        self.lose(block, index);
        block.unlock(self.platform);
        self.platform.event(Event::BadMemory { frame });
    }

    /// Whether a frame is known to be bad.
    pub fn is_bad(&self, frame: Frame) -> bool {
        let Some(block) = self.memmap.get(frame.block()) else { return false };
        let index = frame.index_in_block();
        block.lock(self.platform);
        let bad = match block.state() {
            BlockState::Small => is_lost(block, index),
            BlockState::Folio | BlockState::FolioTail => block.used.contains(index),
            _ => false,
        };
        block.unlock(self.platform);
        bad
    }

    /// Whether a frame of the folio of order 9 or more that starts at `frame` was marked. The caller has it to himself, or
    /// keeps it from coming apart. A task that maps a folio asks afterwards.
    pub fn has_bad(&self, frame: Frame) -> bool {
        self.bad_frames() > 0 && has_marks(&self.memmap, frame)
    }

    /// Whether a frame of the block of `frame`, which is part of a folio of whole blocks, was marked.
    pub fn has_bad_in_block(&self, frame: Frame) -> bool {
        !self.memmap.block(frame.block()).used.load().is_empty()
    }

    /// A frame of a block in small pieces.
    fn condemn_small(&self, frame: Frame, block: &Block) -> Verdict {
        let index = frame.index_in_block();
        block.lock(self.platform);
        let maps = block.small_maps(self.platform);
        let state = block.area().map_or(FrameState::UNKNOWN, |area| area.state(index));
        let verdict = if block.state() != BlockState::Small {
            Verdict::Busy
        } else if is_lost(block, index) {
            Verdict::Already
        } else if !block.used.contains(index) {
            self.lose_free(frame.block(), block, index);
            Verdict::Lost
        } else if maps.get(index) > 0 && !block.held.contains(index) {
            Verdict::Anonymous
        } else if block.held.contains(index) {
            if self.is_managers(frame, block) { Verdict::Unrecoverable } else { Verdict::Held }
        } else if state == FrameState::UNCLAIMED && block.heads.contains(index) {
            // Inside a folio it is what was left there.
            block.heads.remove_run(index, 1);
            block.held.insert_run(index, 1);
            self.lose(block, index);
            Verdict::Lost
        } else if self.is_listed(block, index, state) {
            Verdict::Busy
        } else if block.mobility() == Mobility::Movable as u8 {
            // It was handed out, and is about to be mapped.
            Verdict::Busy
        } else {
            Verdict::Unrecoverable
        };
        block.unlock(self.platform);
        verdict
    }

    /// Whether a held frame of a block in small pieces is the manager's own, or has no owner: descriptors, what was
    /// never given to it, and what it says is its own. Under the block's lock.
    fn is_managers(&self, frame: Frame, block: &Block) -> bool {
        let Some(area) = block.area() else { return true };
        let (descriptors, at) =
            (core::ptr::from_ref(area).addr(), self.platform.direct_map(frame.addr()).addr());
        if at.wrapping_sub(descriptors) < DESCRIPTOR_FRAMES * FRAME_SIZE as usize {
            return true;
        }
        let index = frame.index_in_block();
        if area.state(index) == FrameState::RESERVED && !block.heads.contains(index) {
            return true;
        }
        // All else that is held and starts no folio belongs to the folio before it.
        let head = block.heads.load().previous_set(index);
        head.is_none_or(|head| Origin::at(area, head).is_managers())
    }

    /// Whether the folio around a frame in use is on a list, or on its way back.
    fn is_listed(&self, block: &Block, index: usize, state: FrameState) -> bool {
        let head = if block.heads.contains(index) { None } else { block.heads.load().previous_set(index) };
        let of_head = head.and_then(|head| block.area().map(|area| area.state(head)));
        of_head.unwrap_or(state).is_free()
    }

    /// Takes a free frame away. Under its block's lock.
    fn lose_free(&self, number: BlockNumber, block: &Block, index: usize) {
        let zone = &self.zones[block.zone()];
        zeroes::change(zone, block, block.zeroed().without(FrameMask::run(index, 1)));
        block.used.insert_run(index, 1);
        block.held.insert_run(index, 1);
        block.free.fetch_sub(1, Ordering::Relaxed);
        let left = FrameMask::ALL.without(block.used.load()).largest_group();
        block.free_order.store(left.min(Order::BLOCK.get()), Ordering::Relaxed);
        self.lose(block, index);
        let shard = &zone.shards[usize::from(block.shard.load(Ordering::Relaxed))];
        let mut lists = shard.0.lock(self.platform);
        if shard.spare() == Some(number) {
            shard.set_spare(None);
        }
        lists.relist(&self.memmap, number, block);
        drop(lists);
        zone.add_free(-1);
    }

    /// A frame that is used and held becomes a bad one. Under its block's lock.
    fn lose(&self, block: &Block, index: usize) {
        block.capacity.fetch_sub(1, Ordering::Relaxed);
        block.area().inspect(|area| area.set_state(index, FrameState::BAD));
        self.note_bad(1);
    }

    fn note_bad(&self, frames: i64) {
        if frames != 0 {
            self.bad.fetch_add(frames as u64, Ordering::SeqCst);
            self.change(Stat::NrHardwareCorrupted, frames);
        }
    }

    /// A frame of a folio of whole blocks. It is marked first, and the mark taken off again where leaves map the folio: who
    /// maps one looks for marks after it was counted ([`Self::has_bad`]), so that one of the two sees the other.
    fn condemn_part(&self, frame: Frame, block: &Block) -> Verdict {
        let (number, index) = (frame.block(), frame.index_in_block());
        block.lock(self.platform);
        let part = matches!(block.state(), BlockState::Folio | BlockState::FolioTail);
        let known = part && block.used.contains(index);
        let order = block.order.load(Ordering::Relaxed);
        if part && !known {
            block.used.insert_run(index, 1);
            self.note_bad(1);
        }
        block.unlock(self.platform);
        if !part || known {
            return if known { Verdict::Already } else { Verdict::Busy };
        }
        let head = self.memmap.block(head_of(number, order.max(Order::BLOCK.get())));
        head.lock(self.platform);
        let same = head.state() == BlockState::Folio && head.order.load(Ordering::Relaxed) == order;
        let huge = same && head.folio().has(DescriptorFlags::HUGE);
        let held = same && !head.held.load().is_empty();
        let maps =
            head.folio_maps.load(Ordering::Acquire) != 0 || head.large_maps.load(Ordering::Relaxed) != 0;
        let mapped = maps || head.small_maps(self.platform).any();
        head.unlock(self.platform);
        let verdict = match (same, huge, held, mapped) {
            (true, true, ..) => return Verdict::Huge,
            (true, false, false, false) => {
                self.free_the_long_way(head);
                return Verdict::Marked;
            }
            (false, ..) => Verdict::Busy,
            (true, false, true, _) => Verdict::Held,
            (true, false, false, true) => Verdict::Anonymous,
        };
        if self.unmark(frame) { verdict } else { Verdict::Lost }
    }

    /// Takes the mark of a frame off, unless it was freed and is lost meanwhile; whether it did.
    fn unmark(&self, frame: Frame) -> bool {
        let (block, index) = (self.memmap.block(frame.block()), frame.index_in_block());
        block.lock(self.platform);
        let marked =
            matches!(block.state(), BlockState::Folio | BlockState::FolioTail) && block.used.contains(index);
        if marked {
            block.used.remove_run(index, 1);
            self.note_bad(-1);
        }
        block.unlock(self.platform);
        marked
    }

    /// Marks a frame of a folio of whole blocks again.
    pub fn mark_again(&self, frame: Frame) {
        let (block, index) = (self.memmap.block(frame.block()), frame.index_in_block());
        block.lock(self.platform);
        if matches!(block.state(), BlockState::Folio | BlockState::FolioTail) && !block.used.contains(index) {
            block.used.insert_run(index, 1);
            self.note_bad(1);
        }
        block.unlock(self.platform);
    }

    /// A folio of order 9 comes apart that has marks: those of its frames that no leaf maps are lost now, of others
    /// the marks are forgotten. Under its block's lock.
    pub(in crate::page_alloc) fn split_marks(&self, block: &Block, lost: FrameMask, mapped: FrameMask) {
        for (start, count) in lost.runs() {
            block.heads.remove_run(start, count);
            block.held.insert_run(start, count);
            block.area().inspect(|area| area.set_states(start, count, FrameState::BAD));
        }
        block.capacity.fetch_sub(lost.count() as u16, Ordering::Relaxed);
        self.note_bad(-(mapped.count() as i64));
    }

    /// Takes the marks off all frames of a block that is part of a folio; which had one.
    pub fn take_marks(&self, number: BlockNumber) -> FrameMask {
        let block = self.memmap.block(number);
        block.lock(self.platform);
        let part = matches!(block.state(), BlockState::Folio | BlockState::FolioTail);
        let marks = if part { block.used.load() } else { FrameMask::EMPTY };
        if part {
            block.used.store(FrameMask::EMPTY);
            self.note_bad(-(marks.count() as i64));
        }
        block.unlock(self.platform);
        marks
    }

    /// Sees to it that a folio which was marked is not freed without its marks being looked at.
    fn free_the_long_way(&self, head: &Block) {
        let forget = || {
            head.lock(self.platform);
            if head.state() == BlockState::Folio {
                FrameState::UNKNOWN.put(head.folio_state_cell());
            }
            head.unlock(self.platform);
        };
        forget();
        // A CPU may just have put it onto a list, and take it again before the lists are emptied.
        self.drain_all();
        forget();
    }

    /// A frame of a block that is whole and free.
    fn condemn_whole(&self, frame: Frame) -> Verdict {
        let number = frame.block();
        let taken = self
            .zones
            .iter()
            .find(|zone| zone.pools.iter().any(|pool| pool.lock(self.platform).take_exactly(number)));
        let Some(zone) = taken else { return Verdict::Busy };
        zone.add_free(-(BLOCK_FRAMES as i64));
        self.note_bad(1);
        self.put_in_pieces(zone, number, FrameMask::run(frame.index_in_block(), 1));
        Verdict::Lost
    }

    /// Puts a block without an owner, whose record is all zero, into the store in small pieces, without its bad
    /// frames.
    pub(in crate::page_alloc) fn put_in_pieces(&self, zone: &Zone, number: BlockNumber, bad: FrameMask) {
        let block = self.memmap.block(number);
        let room = (0..BLOCK_FRAMES)
            .step_by(DESCRIPTOR_FRAMES)
            .find(|&at| FrameMask::run(at, DESCRIPTOR_FRAMES).intersection(bad).is_empty());
        block.lock(self.platform);
        let Some(first) = room else {
            // Not one place for its descriptors is left.
            block.set_state(BlockState::Metadata);
            block.unlock(self.platform);
            return;
        };
        self.make_small(zone, number, block, first, bad, false);
        block.shard.store((number.0 as usize % zone.shards.len()) as u16, Ordering::Relaxed);
        block.set_group(zone.number, Mobility::Movable as u8);
        if let Some(area) = block.area() {
            bad.runs().for_each(|(start, count)| area.set_states(start, count, FrameState::BAD));
        }
        let free = i64::from(block.free.load(Ordering::Relaxed));
        self.relist(zone, number, block);
        block.unlock(self.platform);
        zone.add_free(free);
    }

    /// The folio in use around a frame: where it starts.
    pub fn folio_start(&self, frame: Frame) -> Option<Frame> {
        let (block, index) = (self.memmap.get(frame.block())?, frame.index_in_block());
        block.lock(self.platform);
        let start = match block.state() {
            BlockState::Small if block.used.contains(index) => block
                .heads
                .load()
                .previous_set(index)
                .map(|head| frame.block().first_frame().add(head as u64)),
            BlockState::Folio | BlockState::FolioTail => {
                Some(head_of(frame.block(), block.order.load(Ordering::Relaxed)).first_frame())
            }
            _ => None,
        };
        block.unlock(self.platform);
        start
    }
}

/// Whether a frame of the folio of order 9 or more that starts at `frame` was marked.
pub(crate) fn has_marks(memmap: &MemMap, frame: Frame) -> bool {
    let order = memmap.block(frame.block()).order.load(Ordering::Relaxed).max(Order::BLOCK.get());
    let mut blocks = (0..1 << (order - Order::BLOCK.get())).map(|at| frame.block().add(at));
    blocks.any(|number| !memmap.block(number).used.load().is_empty())
}

/// Whether a frame of a block in small pieces is lost. Under the block's lock.
pub(in crate::page_alloc) fn is_lost(block: &Block, index: usize) -> bool {
    let lost = block.area().is_some_and(|area| area.state(index) == FrameState::BAD);
    lost && block.held.contains(index) && !block.heads.contains(index)
}

const _: () = assert!(AREA.frames() == DESCRIPTOR_FRAMES as u64);
