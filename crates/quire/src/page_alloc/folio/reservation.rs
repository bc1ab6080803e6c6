//! Rooms: blocks whose frames somebody has to himself until he makes something of one after the other that is held.
//!
//! Nobody else has anything there, so a frame of a room that goes bad is lost at once, as a free one is; who comes to take it is
//! told. It says so of itself ([`FrameState::ROOM`]): of others that are neither mapped nor held it is not known who is about to
//! use them.
#![forbid(unsafe_code)]

use crate::addr::{Frame, FrameRange, Order};
use crate::limits::BLOCK_FRAMES;
use crate::memmap::{FrameMask, FrameState};
use crate::page_alloc::allocator::PageAllocator;
use crate::page_alloc::folio::owned::Folio;
use crate::platform::FramePlatform;

/// A block in small pieces, the caller's alone but for what he took of it.
#[must_use = "frames that nobody gives back are lost"]
#[derive(Debug)]
pub struct Room {
    block: Frame,
    /// Frames that were taken: whoever they belong to now may have freed them.
    taken: FrameMask,
}

impl Room {
    /// The frame at a place, which counts from the block's start, or that of another one.
    pub const fn frame(&self, place: u64) -> Frame {
        self.block.add(place % BLOCK_FRAMES as u64)
    }

    /// Whether the frame at a place was taken.
    pub fn is_taken(&self, place: u64) -> bool {
        self.taken.contains((place % BLOCK_FRAMES as u64) as usize)
    }
}

impl<P: FramePlatform> PageAllocator<'_, P> {
    /// Makes a room of a folio of order 9 that was just allocated; its descriptors stand elsewhere, in 1/64 of its size.
    /// `None`, and the folio is free again, where there is no memory for these or some of the folio went bad.
    pub fn open_room(&self, folio: Folio) -> Option<Room> {
        if self.split_in_use(folio.frame(), Order::FRAME).is_err() {
            let freed = self.free(folio);
            debug_assert_eq!(freed, Ok(()), "a folio that was just handed out");
            return None;
        }
        let folio = folio.into_raw();
        let block = self.memmap.block(folio.block());
        block.lock(self.platform);
        block.area().inspect(|area| area.set_states(0, BLOCK_FRAMES, FrameState::ROOM));
        block.unlock(self.platform);
        Some(Room { block: folio, taken: FrameMask::EMPTY })
    }

    /// Takes some frames out of a room for a file, and holds them; none, if one of them went bad. Whether it did.
    pub fn take_of_room(&self, room: &mut Room, wanted: FrameMask) -> bool {
        debug_assert!(wanted.intersection(room.taken).is_empty(), "a frame is taken once");
        let block = self.memmap.block(room.block.block());
        block.lock(self.platform);
        let held = block.held.load();
        // Of what nobody took only what is lost is held.
        let good = held.intersection(wanted).is_empty();
        if good {
            block.held.store(held.union(wanted));
            for (start, count) in wanted.runs() {
                block.area().inspect(|area| area.set_states(start, count, FrameState::UNKNOWN));
                let frames = FrameRange::new(room.block.add(start as u64), count as u64);
                self.give_to_file(frames);
            }
            room.taken = room.taken.union(wanted);
        }
        block.unlock(self.platform);
        good
    }

    /// Frees what nobody took.
    pub fn close_room(&self, room: Room) {
        let (number, rest) = (room.block.block(), FrameMask::ALL.without(room.taken));
        if rest.is_empty() {
            return;
        }
        let block = self.memmap.block(number);
        block.lock(self.platform);
        let rest = rest.without(block.held.load());
        for (start, count) in rest.runs() {
            self.note_freed(FrameRange::new(room.block.add(start as u64), count as u64));
        }
        self.store_put(number, block, rest);
    }
}
