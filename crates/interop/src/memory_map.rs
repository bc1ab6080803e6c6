//! The usable memory of a machine: a boot loader's description in Quire's form.
#![forbid(unsafe_code)]

use quire::addr::{Frame, FrameRange, PhysAddr};
use quire::limits::{BLOCK_FRAMES, FRAME_SIZE, MAX_PHYS_BYTES, MAX_RANGES};
use quire::manager::MemoryRange;

/// The usable ranges of a machine: whole frames, in ascending order, without overlaps.
///
/// First add usable memory, then reserve memory that is in use: a reserved frame is in no range, however
/// often it was added. The map holds [`MAX_RANGES`] ranges. Beyond these it drops the smallest, and
/// [`dropped_frames`](Self::dropped_frames) counts their frames.
///
/// ```
/// use quire::addr::PhysAddr;
/// use quire_interop::MemoryMap;
///
/// let mut map = MemoryMap::new();
/// map.add(PhysAddr(0x10_0000), 64 << 20);
/// map.reserve(PhysAddr(0x20_0000), 0x1234); // The kernel's image.
/// let frames: Vec<_> = map.ranges().iter().map(|range| (range.frames.start.0, range.frames.count)).collect();
/// assert_eq!(frames, [(0x100, 0x100), (0x202, 0x3efe)]);
/// ```
#[derive(Clone, Debug)]
pub struct MemoryMap {
    ranges: [MemoryRange; MAX_RANGES],
    count: usize,
    dropped: u64,
}

impl MemoryMap {
    /// A map without memory.
    pub const fn new() -> Self {
        let none = MemoryRange { frames: FrameRange::new(Frame(0), 0), node: 0, zeroed: false };
        Self { ranges: [none; MAX_RANGES], count: 0, dropped: 0 }
    }

    /// The argument of [`MemoryManager::new`](quire::manager::MemoryManager::new) and
    /// [`PageAllocator::new`](quire::page_alloc::PageAllocator::new).
    pub fn ranges(&self) -> &[MemoryRange] {
        &self.ranges[..self.count]
    }

    /// The whole blocks of 2 MiB in the ranges, as
    /// [`add_memory`](quire::page_alloc::PageAllocator::add_memory) takes them.
    pub fn whole_blocks(&self) -> impl Iterator<Item = FrameRange> {
        const BLOCK: u64 = BLOCK_FRAMES as u64;
        let cut = |range: &MemoryRange| {
            run(range.frames.start.0.next_multiple_of(BLOCK), range.frames.end().0 / BLOCK * BLOCK)
        };
        self.ranges().iter().map(cut).filter(|blocks| blocks.count > 0)
    }

    /// How many frames the map has.
    pub fn frames(&self) -> u64 {
        self.ranges().iter().map(|range| range.frames.count).sum()
    }

    /// Frames that were left out because there were more than [`MAX_RANGES`] ranges.
    pub const fn dropped_frames(&self) -> u64 {
        self.dropped
    }

    /// Adds usable memory, on node 0 and with unknown contents, as far as the map does not have it yet.
    /// Partly usable frames are left out, and so is memory above the largest address that Quire manages, 64
    /// TiB.
    pub fn add(&mut self, start: PhysAddr, bytes: u64) {
        let end = start.0.saturating_add(bytes).min(MAX_PHYS_BYTES) / FRAME_SIZE;
        let mut at = start.0.div_ceil(FRAME_SIZE);
        while at < end {
            let next = self.ranges().iter().map(|range| range.frames).find(|frames| frames.end().0 > at);
            let stop = next.map_or(end, |frames| frames.start.0.min(end));
            self.insert(MemoryRange { frames: run(at, stop), node: 0, zeroed: false });
            at = next.map_or(end, |frames| frames.end().0);
        }
    }

    /// Removes memory that is in use: the kernel's image, its modules, the boot loader's tables. Frames that
    /// are partly in use are removed too.
    pub fn reserve(&mut self, start: PhysAddr, bytes: u64) {
        self.replace(frames_around(start, bytes), |_| None);
    }

    /// Sets the memory node of these addresses, for example from ACPI's table of affinities (SRAT). A frame
    /// at the edge belongs to them.
    pub fn set_node(&mut self, start: PhysAddr, bytes: u64, node: u8) {
        self.replace(frames_around(start, bytes), |range| Some(MemoryRange { node, ..range }));
    }

    /// Promises that this memory reads as zero, as the memory of a fresh virtual machine does. Taking it over is
    /// faster then. The promise says nothing of the rest of a frame at the edge: that frame is not marked.
    pub fn mark_zeroed(&mut self, start: PhysAddr, bytes: u64) {
        let end = start.0.saturating_add(bytes) / FRAME_SIZE;
        let whole = run(start.0.div_ceil(FRAME_SIZE), end);
        self.replace(whole, |range| Some(MemoryRange { zeroed: true, ..range }));
    }

    /// Replaces the parts of ranges in these frames, or removes them.
    fn replace(&mut self, frames: FrameRange, with: impl Fn(MemoryRange) -> Option<MemoryRange>) {
        let (mut at, end) = (frames.start.0, frames.end().0);
        while at < end
            && let Some(index) = self.ranges().iter().position(|range| range.frames.end().0 > at)
        {
            let old = self.ranges[index];
            let (first, last) = (old.frames.start.0, old.frames.end().0);
            let (low, high) = (first.max(at), last.min(end));
            if low >= high {
                return;
            }
            self.remove(index);
            self.insert(MemoryRange { frames: run(first, low), ..old });
            if let Some(new) = with(MemoryRange { frames: run(low, high), ..old }) {
                self.insert(new);
            }
            self.insert(MemoryRange { frames: run(high, last), ..old });
            at = high;
        }
    }

    /// Adds a range that overlaps no other, as a part of its neighbours where these agree with it.
    fn insert(&mut self, range: MemoryRange) {
        if range.frames.count == 0 {
            return;
        }
        let index = self.ranges().iter().filter(|other| other.frames.start < range.frames.start).count();
        let continues = |low: MemoryRange, high: MemoryRange| {
            low.frames.end() == high.frames.start && (low.node, low.zeroed) == (high.node, high.zeroed)
        };
        let mut range = range;
        if index < self.count && continues(range, self.ranges[index]) {
            range.frames.count += self.ranges[index].frames.count;
            self.remove(index);
        }
        if index > 0 && continues(self.ranges[index - 1], range) {
            self.ranges[index - 1].frames.count += range.frames.count;
            return;
        }
        if self.count < MAX_RANGES {
            self.ranges.copy_within(index..self.count, index + 1);
            self.ranges[index] = range;
            self.count += 1;
            return;
        }
        let sizes = self.ranges.iter().map(|other| other.frames.count).enumerate();
        let (smallest, frames) = sizes.min_by_key(|&(_, frames)| frames).unwrap_or((0, 0));
        self.dropped += frames.min(range.frames.count);
        if frames < range.frames.count {
            self.remove(smallest);
            self.insert(range);
        }
    }

    fn remove(&mut self, index: usize) {
        self.ranges.copy_within(index + 1..self.count, index);
        self.count -= 1;
    }
}

impl Default for MemoryMap {
    fn default() -> Self {
        Self::new()
    }
}

/// The frames of which some memory is at these addresses.
fn frames_around(start: PhysAddr, bytes: u64) -> FrameRange {
    let end = if bytes == 0 { 0 } else { start.0.saturating_add(bytes).div_ceil(FRAME_SIZE) };
    run(start.0 / FRAME_SIZE, end)
}

fn run(start: u64, end: u64) -> FrameRange {
    FrameRange::new(Frame(start), end.saturating_sub(start))
}

#[cfg(test)]
mod tests;
