//! What an address space maps, and how many address spaces map it: the base of [`crate::vm::observe::smaps`]
//! and [`crate::vm::observe::pagemap`].
//!
//! # How a frame's number of address spaces is found
//!
//! A map count is the number of leaves that map a frame, exact for each (invariant 5). Mostly that is the
//! number of address spaces: none maps a frame twice, save pages of files that it has mapped twice, each of
//! which counts, as with Linux. A leaf in a table that `fork` shared ([`crate::pgtable`]) counts once, and
//! belongs to as many as reach the table. So:
//!
//! - tables are never shared ([`ForkStrategy::Copy`]), or no leaf of 4 KiB maps the frame: the count says it;
//! - the only leaf of 4 KiB that maps it is the one that we look at: the number of those that reach its
//!   table, and the larger leaves;
//! - other leaves of 4 KiB map it, whose tables may be shared by others again: the reverse map is asked, one
//!   visit of each address space of the family for up to [`BATCH`] frames.
//!
//! Leaves are read with the address-space lock held for reading, [`BATCH`] runs of pages at a time, and
//! counted with one hold of a block's lock for 64 frames or a block. They are shown, and the reverse map is
//! asked, holding nothing.
#![forbid(unsafe_code)]

use crate::addr::{Frame, FrameRange, PageSize, VirtAddr, VirtRange};
use crate::arch::EntryFlags;
use crate::limits::FRAME_SHIFT;
use crate::page_alloc::{CountGroup, Origin};
use crate::pgtable::{Leaf, PageTables};
use crate::platform::Platform;
use crate::vm::observe::view::{Observation, PageSurvey};
use crate::vm::rmap::reverse::place_in;
use crate::vm::space::found::FoundBody;
use crate::vm::space::shared::{ForkStrategy, MmShared};

/// Runs of pages that are looked at between two moments at which others may change mappings.
const BATCH: usize = 64;

/// Pages of 4 KiB that are mapped alike: at consecutive addresses, to consecutive frames, by leaves of one
/// size with the same bits, in as many address spaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapped {
    /// The first address.
    pub addr: VirtAddr,
    /// The frames.
    pub frames: FrameRange,
    /// The first leaf's bits, its frame left out.
    pub flags: EntryFlags,
    /// The size of the leaves. Pages of one large leaf may be mapped differently elsewhere, and are shown
    /// apart then.
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

/// Some of them, and which the reverse map must be asked about.
struct Batch {
    items: [Option<Mapped>; BATCH],
    asked: [bool; BATCH],
    count: usize,
}

impl Batch {
    const fn new() -> Self {
        Self { items: [None; BATCH], asked: [false; BATCH], count: 0 }
    }

    /// Adds a run, to the one before if it goes on with it; whether there was room.
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

    /// Those that the reverse map must be asked about, each a single frame.
    fn asked(&mut self) -> impl Iterator<Item = &mut Mapped> {
        self.items.iter_mut().zip(&self.asked).filter_map(|(item, asked)| item.as_mut().filter(|_| *asked))
    }
}

/// What is known of the counts of the frames that were looked at last.
struct Counts<'a, 'p, P: Platform> {
    memory: &'a MmShared<'p, P>,
    group: Option<CountGroup>,
}

impl<P: Platform> Counts<'_, '_, P> {
    /// The counts around a frame.
    fn around(&mut self, frame: Frame) -> Option<&CountGroup> {
        if !self.group.is_some_and(|group| group.frames.contains(frame)) {
            self.group = self.memory.pages().counts().count_group(frame);
        }
        self.group.as_ref()
    }

    /// How many frames from the first of these on are mapped as often as it, as often as is known, and
    /// whether more must be asked.
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
            // Those that reach our table beside us.
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

    /// Looks at what is mapped at the start of a range until the batch is full; where it stopped.
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
        if batch.asked().next().is_none() {
            return;
        }
        let mut found = [0; BATCH];
        let frames: [Option<Frame>; BATCH] = core::array::from_fn(|at| {
            batch.items[at].filter(|_| batch.asked[at]).map(|item| item.frames.start)
        });
        PageSurvey::of(self.memory).count_spaces(Origin::kept(self.family), &frames, &mut found);
        for (at, item) in batch.items.iter_mut().enumerate().filter(|&(at, _)| frames[at].is_some()) {
            if let Some(item) = item {
                // As long as nothing changes each leaf is some address space's.
                item.spaces = found[at].max(item.spaces.min(1));
            }
        }
    }
}

impl<P: Platform> PageSurvey<'_, '_, P> {
    /// Adds to each of `found` how many address spaces of a family map that anonymous frame: one visit for
    /// each, under its lock for reading. The caller holds no lock.
    pub(in crate::vm) fn count_spaces(self, family: u64, frames: &[Option<Frame>], found: &mut [u64]) {
        let mut after = 0;
        while let Some(body) = FoundBody::next_of_family(self.0, family, after) {
            after = body.mapper.number();
            let space = body.space.read(self.platform());
            let tables = PageTables::new(self.pages(), &body.context);
            for (frame, found) in frames.iter().zip(&mut *found) {
                let origin = frame.and_then(|frame| Some((frame, self.pages().frames().origin(frame)?)));
                let place =
                    origin.and_then(|(frame, origin)| place_in(&space, &tables, frame, origin.addr()));
                *found += u64::from(place.is_some());
            }
        }
    }
}
