//! Which frames an address space maps, and how many address spaces map each: the base of
//! [`crate::vm::observe::smaps`] and [`crate::vm::observe::pagemap`].
//!
//! # How many address spaces map a frame?
//!
//! A map count is the exact number of leaves that map a frame (invariant 5). Mostly that is the number of
//! address spaces: only a page of a file can be mapped twice by one, and both count then, as with Linux. But
//! a leaf in a table that `fork` shared ([`crate::pgtable`]) counts once, and belongs to all address spaces
//! that reach the table. So:
//!
//! - if tables are never shared ([`ForkStrategy::Copy`]), or no leaf of 4 KiB maps the frame: the map count;
//! - if the leaf at hand is the only one of 4 KiB: the number of address spaces that reach its table, and of
//!   larger leaves;
//! - if other leaves of 4 KiB map the frame, their tables may be shared too: the reverse map visits each
//!   address space of the family once for up to [`BATCH`] frames.
//!
//! [`BATCH`] runs of pages at a time are read under the address-space lock for reading, and counted with one
//! hold of a block's lock for 64 frames or a block. They are shown, and the reverse map is asked, without a
//! lock.
#![forbid(unsafe_code)]

use crate::addr::{Frame, FrameRange, PageSize, VirtAddr, VirtRange};
use crate::arch::EntryFlags;
use crate::limits::FRAME_SHIFT;
use crate::page_alloc::{CountGroup, Origin};
use crate::pgtable::Leaf;
use crate::platform::Platform;
use crate::vm::observe::view::{Observation, PageSurvey};
use crate::vm::rmap::reverse::place_in;
use crate::vm::space::found::FoundBody;
use crate::vm::space::shared::{ForkStrategy, MmShared};

/// Runs of pages that are read under one hold of the address-space lock.
const BATCH: usize = 64;

/// Pages of 4 KiB that are mapped alike: at consecutive addresses, to consecutive frames, by leaves of one
/// size with the same bits, in as many address spaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapped {
    /// The first address.
    pub addr: VirtAddr,
    /// The frames.
    pub frames: FrameRange,
    /// The first leaf's bits without its frame.
    pub flags: EntryFlags,
    /// The size of the leaves. If other address spaces map parts of a large leaf, its pages are shown apart.
    pub size: PageSize,
    /// How many times each frame is mapped: once for each address space, and for each place at which one maps
    /// it; 0 for the zero frame, which is not counted.
    pub spaces: u64,
}

impl Mapped {
    /// Their addresses.
    pub fn range(&self) -> VirtRange {
        VirtRange::from_len(self.addr, self.frames.count << FRAME_SHIFT)
    }

    /// Whether the leaves have all of these bits.
    pub fn has(&self, flags: EntryFlags) -> bool {
        self.flags.contains(flags)
    }

    fn goes_on_with(&self, next: &Self) -> bool {
        self.range().end == next.addr
            && self.frames.end() == next.frames.start
            && (self.flags, self.size, self.spaces) == (next.flags, next.size, next.spaces)
    }
}

struct Batch {
    items: [Option<Mapped>; BATCH],
    /// Which of them are single frames that the reverse map must be asked about.
    asked: [bool; BATCH],
    count: usize,
}

impl Batch {
    const fn new() -> Self {
        Self { items: [None; BATCH], asked: [false; BATCH], count: 0 }
    }

    /// Adds a run, or extends the last one by it; returns whether there was room.
    fn add(&mut self, item: Mapped, ask: bool) -> bool {
        if let Some(last) = self.count.checked_sub(1)
            && let Some(before) = &mut self.items[last]
            && !ask
            && !self.asked[last]
            && before.goes_on_with(&item)
        {
            before.frames.count += item.frames.count;
            return true;
        }
        if self.count == BATCH {
            return false;
        }
        (self.items[self.count], self.asked[self.count]) = (Some(item), ask);
        self.count += 1;
        true
    }
}

/// The map counts around the frame that was looked up last.
struct Counts<'a, 'p, P: Platform> {
    memory: &'a MmShared<'p, P>,
    group: Option<CountGroup>,
}

impl<P: Platform> Counts<'_, '_, P> {
    fn around(&mut self, frame: Frame) -> Option<&CountGroup> {
        if !self.group.is_some_and(|group| group.frames.contains(frame)) {
            self.group = self.memory.pages().counts().count_group(frame);
        }
        self.group.as_ref()
    }

    /// How many of these frames are mapped as often as the first, how often, and whether to ask the reverse
    /// map.
    fn of(&mut self, leaf: &Leaf, frames: FrameRange) -> (u64, u64, bool) {
        if leaf.entry.has(EntryFlags::SPECIAL) {
            return (frames.count, 0, false);
        }
        let shares = self.memory.fork_strategy() == ForkStrategy::Share;
        let Some(group) = self.around(frames.start) else { return (frames.count, 1, false) };
        let known = |frame: Frame| {
            let (small, all) = (group.small(frame), group.leaves(frame));
            let own = u64::from(leaf.size == PageSize::Size4K);
            let ask = shares && leaf.entry.has(EntryFlags::ANON) && small > own;
            // Plus the other address spaces that reach our table.
            (all + leaf.spaces - 1, ask)
        };
        let (spaces, ask) = known(frames.start);
        if ask {
            return (1, spaces, true);
        }
        let most = (group.frames.end().0 - frames.start.0).min(frames.count);
        let alike = (1..most).take_while(|&at| known(frames.start.add(at)) == (spaces, false)).count();
        (1 + alike as u64, spaces.max(1), false)
    }
}

impl<P: Platform> Observation<'_, '_, P> {
    /// See [`Mm::mapped`](crate::vm::Mm::mapped).
    pub(in crate::vm) fn mapped(self, range: VirtRange, mut show: impl FnMut(&Mapped)) {
        let mut rest = range.intersect(self.context().mode().user_range());
        while !rest.is_empty() {
            let mut batch = Batch::new();
            rest.start = self.look(rest, &mut batch);
            self.ask(&mut batch);
            batch.items.iter().flatten().for_each(&mut show);
            self.memory.platform().reschedule_point();
        }
    }

    /// Reads leaves from the start of a range until the batch is full; returns where it stopped.
    fn look(self, range: VirtRange, batch: &mut Batch) -> VirtAddr {
        let _space = self.space.read(self.memory.platform());
        let mut counts = Counts { memory: self.memory, group: None };
        let mut stopped = range.end;
        self.tables().leaves(range, |leaf| {
            let part = VirtRange::from_len(leaf.addr, leaf.size.bytes()).intersect(range);
            let inside = (part.start.0 - leaf.addr.0) >> FRAME_SHIFT;
            let mut frames = FrameRange::new(leaf.entry.frame().add(inside), part.pages());
            let mut addr = part.start;
            while frames.count > 0 {
                let (count, spaces, ask) = counts.of(&leaf, frames);
                let flags = leaf.entry.flags().without(EntryFlags::LARGE);
                let (run, size) = (FrameRange::new(frames.start, count), leaf.size);
                if !batch.add(Mapped { addr, frames: run, flags, size, spaces }, ask) {
                    stopped = addr;
                    return false;
                }
                addr = addr.add(count << FRAME_SHIFT);
                frames = FrameRange::new(frames.start.add(count), frames.count - count);
            }
            true
        });
        stopped
    }

    /// Asks the reverse map about frames that leaves in shared tables may map.
    fn ask(self, batch: &mut Batch) {
        if !batch.asked.contains(&true) {
            return;
        }
        let mut found = [0; BATCH];
        let frames: [Option<Frame>; BATCH] = core::array::from_fn(|at| {
            batch.items[at].filter(|_| batch.asked[at]).map(|item| item.frames.start)
        });
        PageSurvey::of(self.memory).count_spaces(Origin::kept(self.family), &frames, &mut found);
        let asked = batch.items.iter_mut().flatten().zip(found).zip(&batch.asked);
        for ((item, found), _) in asked.filter(|(_, asked)| **asked) {
            // At least this address space mapped it.
            item.spaces = found.max(item.spaces.min(1));
        }
    }
}

impl<P: Platform> PageSurvey<'_, '_, P> {
    /// Adds to each of `found` how many address spaces of the family map that anonymous frame. Visits each
    /// once, under its lock for reading. The caller holds no lock.
    pub(in crate::vm) fn count_spaces(self, family: u64, frames: &[Option<Frame>], found: &mut [u64]) {
        let mut after = 0;
        while let Some(body) = FoundBody::next_of_family(self.0, family, after) {
            after = body.mapper.number();
            let space = body.space.read(self.platform());
            let tables = body.tables(self.pages());
            for (frame, found) in frames.iter().zip(&mut *found) {
                let origin = frame.and_then(|frame| Some((frame, self.pages().frames().origin(frame)?)));
                let place =
                    origin.and_then(|(frame, origin)| place_in(&space, &tables, frame, origin.addr()));
                *found += u64::from(place.is_some());
            }
        }
    }
}
