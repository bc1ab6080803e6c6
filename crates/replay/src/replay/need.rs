//! Estimates the needs of a replay, event by event during the survey, and compares them with the limits.
//!
//! Memory is counted in bytes of the machine. Work is counted in pages that a replay populates, copies or
//! walks over: a page costs some hundred nanoseconds at most, so the bound limits the time.

use super::error::ReplayError;
use super::huge::{BITS, HugeMaps};
use super::pages::{ORDERS, PageSet};
use super::policy::exact_bytes;
use super::verb::PAGE;

/// Pages of work allowed for each event, beyond those allowed for any trace.
const WORK_PER_EVENT: u64 = 1024;
/// Bytes of the records of one mapping, at most.
const MAPPING_BYTES: u64 = 256;
/// Frames of an empty address space, at most.
const SPACE_FRAMES: u64 = 4;
/// The memory of a machine is a multiple of this.
const STEP: u64 = 64 << 20;
/// The smallest machine, if the user gives no size.
const LEAST: u64 = 256 << 20;

/// Bytes that a machine with this memory takes of the host; the replay's own records are a small part.
pub(super) const fn taken(memory: u64) -> u64 {
    memory.saturating_add(memory / 32 + (16 << 20))
}

/// Bytes in whole MiB, as a refusal shows them.
pub(super) fn shown(bytes: u64) -> String {
    exact_bytes(bytes >> 20 << 20)
}

/// The limits beyond which a trace is refused.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Bytes of memory.
    pub(super) memory: u64,
    /// Pages of work, beyond those allowed for the number of events.
    pub(super) work: u64,
}

impl Bounds {
    /// Everything is allowed.
    pub(super) const NONE: Self = Self { memory: u64::MAX, work: u64::MAX };
}

/// The contents of one address space.
#[derive(Clone, Default)]
pub(super) struct Life {
    /// The number of the first address space of those that were forked from each other.
    pub(super) family: u32,
    /// Private pages that are stored to; each may bring a folio.
    pub(super) written: PageSet,
    /// Pages that it shares with others of its family: one of these has them among the written ones.
    pub(super) inherited: PageSet,
    /// Resident pages, each of which needs page tables.
    pub(super) used: PageSet,
    /// Mappings, at most: protections cut them.
    pub(super) mappings: u64,
    /// Whether anything is locked, so that growing mappings are populated.
    pub(super) locks: bool,
    /// Whether later mappings are locked.
    pub(super) locks_future: bool,
    pub(super) huge: HugeMaps,
}

/// The estimate so far.
pub(super) struct Estimate {
    bounds: Bounds,
    event: u64,
    now: Sums,
    /// The largest need so far, by folio order.
    most: [u64; ORDERS],
    /// The most huge pages of pools that were mapped, by size.
    pub(super) huge: [u64; BITS.len()],
    work: u64,
}

#[derive(Clone, Copy, Default)]
struct Sums {
    groups: [u64; ORDERS],
    frames: u64,
    mappings: u64,
    cached: u64,
    huge: [u64; BITS.len()],
}

impl Estimate {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { bounds, event: 0, now: Sums::default(), most: [0; ORDERS], huge: [0; BITS.len()], work: 0 }
    }

    /// Adds an address space like `life`.
    pub(super) fn add(&mut self, life: &Life) {
        for (sum, count) in self.now.groups.iter_mut().zip(life.written.groups()) {
            *sum += count;
        }
        self.now.frames += life.frames();
        self.now.mappings += life.mappings;
        self.now.huge.iter_mut().zip(life.huge.pages()).for_each(|(sum, pages)| *sum += pages);
    }

    /// Removes an address space like `life`.
    pub(super) fn remove(&mut self, life: &Life) {
        for (sum, count) in self.now.groups.iter_mut().zip(life.written.groups()) {
            *sum -= count;
        }
        self.now.frames -= life.frames();
        self.now.mappings -= life.mappings;
        self.now.huge.iter_mut().zip(life.huge.pages()).for_each(|(sum, pages)| *sum -= pages);
    }

    /// Mappings of all address spaces, at most.
    pub(super) const fn mappings(&self) -> u64 {
        self.now.mappings
    }

    /// Adds frames of the page cache.
    pub(super) const fn cache(&mut self, frames: u64) {
        self.now.cached += frames;
    }

    /// Adds pages of work of the current event.
    ///
    /// # Errors
    /// [`ReplayError::TooLong`].
    pub(super) fn work(&mut self, pages: u64) -> Result<(), ReplayError> {
        self.work = self.work.saturating_add(pages);
        let allowed = self.bounds.work.saturating_add(self.event * WORK_PER_EVENT);
        if self.work <= allowed {
            return Ok(());
        }
        Err(ReplayError::TooLong { event: self.event, pages: self.work, allowed })
    }

    /// Ends the survey of an event.
    ///
    /// # Errors
    /// [`ReplayError::TooLarge`] when single frames alone need more than is allowed.
    pub(super) fn next(&mut self) -> Result<(), ReplayError> {
        for (order, most) in self.most.iter_mut().enumerate() {
            *most = (*most).max(self.now.bytes(order));
        }
        self.huge.iter_mut().zip(self.now.huge).for_each(|(most, now)| *most = now.max(*most));
        if self.most[0] > self.bounds.memory {
            return Err(ReplayError::TooLarge {
                event: self.event,
                needed: shown(self.most[0]),
                allowed: shown(self.bounds.memory),
            });
        }
        self.event += 1;
        Ok(())
    }

    /// Bytes of a machine that can hold folios of this order: the counted need, and a good eighth for the
    /// rest.
    pub(super) fn needed(&self, order: usize) -> u64 {
        let bytes = self.most[order];
        bytes.saturating_add(bytes / 8 + STEP).checked_next_multiple_of(STEP).unwrap_or(u64::MAX).max(LEAST)
    }
}

impl Sums {
    fn bytes(&self, order: usize) -> u64 {
        let frames = (self.groups[order] << order) + self.frames + self.cached;
        frames * PAGE + self.mappings * MAPPING_BYTES
    }
}

impl Life {
    /// Frames of page tables, at most: where memory is sparse, each 2 MiB has a table of its own on each of two levels.
    fn frames(&self) -> u64 {
        self.used.chunks() * 2 + SPACE_FRAMES
    }

    /// The copy in a forked child: its pages are its parent's, and no huge page is reserved.
    pub(super) fn forked(&self) -> Self {
        let mut inherited = self.inherited.clone();
        inherited.extend(&self.written);
        Self {
            written: PageSet::default(),
            inherited,
            locks: false,
            locks_future: false,
            huge: HugeMaps::default(),
            ..self.clone()
        }
    }

    /// Pages of work to copy it or walk over it: an entry costs less than a page.
    pub(super) const fn walk(&self) -> u64 {
        (self.used.len() + self.mappings) / 4 + 1
    }

    /// Pages of work of a verb on `len` bytes that populates nothing.
    pub(super) fn sweep(&self, len: u64) -> u64 {
        let pages = len.div_ceil(PAGE);
        (self.used.len().min(pages) + self.mappings.min(pages)) / 16
    }
}
