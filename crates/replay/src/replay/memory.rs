//! Peak memory use, by kind.
//!
//! Memory shrinks only by calls that free some, so it is sampled before each of those, and the peak is exact.
//! The full sample, which reads every page table, is taken only when at least a sixty-fourth more is in use
//! than at the last one.

use std::collections::HashMap;

use hosted::Hosted;
use quire::addr::{Frame, Order};
use quire::manager::{Meminfo, MemoryManager};
use quire::memmap::BlockState;
use serde::Serialize;

use super::frames::{FrameMap, FrameSet};
use super::pages::Lookup;
use super::parts::{MappedParts, PartId, PartLookup, Parts};
use super::processes::{Key, Processes, Space};
use super::verb::PAGE;

/// Memory in use at one moment, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Usage {
    /// Events of the trace that were replayed until then.
    pub(crate) event: u64,
    /// The sum of the following.
    pub(crate) total: u64,
    /// Private folios, each counted once however many address spaces map it.
    pub(crate) anonymous: u64,
    /// Page cache.
    pub(crate) file: u64,
    /// Shared anonymous memory.
    pub(crate) shared: u64,
    /// Page-table pages.
    pub(crate) page_tables: u64,
    /// The allocator's block records and page descriptors.
    pub(crate) metadata: u64,
    /// Records of mappings, files, page cache and map counts, and the zero page.
    pub(crate) records: u64,
    /// The part of `anonymous` that the program has touched.
    pub(crate) touched: u64,
    /// The part that only the folio size populated.
    pub(crate) wasted: u64,
}

/// The peak so far.
#[derive(Default)]
pub(super) struct Peak {
    usage: Usage,
    /// Frames in use that no program has.
    held: u64,
}

impl Peak {
    /// That of programs on a machine of which others hold so many frames.
    pub(super) fn above(held: u64) -> Self {
        Self { held, ..Self::default() }
    }

    /// Takes a sample, if more is in use than ever before; `always` looks at the owners of the frames in any
    /// case.
    ///
    /// # Errors
    /// The frames in use, if mappings, files, tables and records do not own exactly these.
    pub(super) fn look<'s, 'm: 's>(
        &mut self,
        (event, always): (u64, bool),
        machine: &Hosted,
        manager: &MemoryManager<'_, Hosted>,
        spaces: impl Iterator<Item = &'s Space<'m>>,
        parts: Option<&mut Parts>,
    ) -> Result<(), String> {
        let info = manager.meminfo();
        let used = info.frames.used - self.held;
        let total = (used + info.frames.metadata) * PAGE;
        let is_peak = total > self.usage.total + self.usage.total / 64;
        if !is_peak && !always {
            return Ok(());
        }
        let seen = Seen::of(machine, manager, spaces, parts.is_some());
        if let Some(parts) = parts {
            let owned = seen.parts.iter().flat_map(FrameMap::iter);
            parts.peak(owned.map(|(frame, part)| (part, seen.touched.contains(frame))), &seen.mapped);
        }
        let (anonymous, touched) = (seen.anonymous.len(), seen.touched.len());
        let records = records(manager, &info);
        let owned = anonymous + info.cached + info.shmem + info.page_tables + records;
        let usage = Usage {
            event,
            total,
            anonymous: anonymous * PAGE,
            file: info.cached * PAGE,
            shared: info.shmem * PAGE,
            page_tables: info.page_tables * PAGE,
            metadata: info.frames.metadata * PAGE,
            records: records * PAGE,
            touched: touched * PAGE,
            wasted: (anonymous - touched) * PAGE,
        };
        if is_peak {
            self.usage = usage;
        }
        if owned == used {
            return Ok(());
        }
        Err(format!(
            "{used} frames are in use: {anonymous} private, {} cached, {} shared, {} of tables and {records} of records are {owned}",
            info.cached, info.shmem, info.page_tables
        ))
    }

    /// The peak.
    pub(super) const fn usage(&self) -> Usage {
        self.usage
    }
}

/// Private pages that are resident without having been touched: of all address spaces, and of each.
pub(super) struct Untouched {
    pub(super) all: u64,
    pub(super) each: HashMap<Key, u64>,
}

impl Untouched {
    /// Looks at all page tables.
    pub(super) fn of(
        machine: &Hosted,
        manager: &MemoryManager<'_, Hosted>,
        processes: &Processes<'_>,
    ) -> Self {
        let seen = Seen::of(machine, manager, processes.spaces(), false);
        let untouched = seen.anonymous.without(&seen.touched);
        let of_space = |key: Key| {
            let leaves = machine.leaves(processes.get(key).mm.root());
            let counts = leaves.iter().map(|leaf| untouched.count(leaf.frame.0, leaf.frame.0 + leaf.frames));
            (key, counts.sum())
        };
        let all = untouched.len();
        let keys = if all > 0 { processes.keys() } else { Vec::new() };
        Self { all, each: keys.into_iter().map(of_space).collect() }
    }
}

/// The contents of all page tables.
#[derive(Default)]
struct Seen {
    /// Frames that only mappings own. A folio of a whole block stays in use until its last page is unmapped, so it counts
    /// as a whole.
    anonymous: FrameSet,
    /// Those among them that a program has touched and still maps.
    touched: FrameSet,
    /// The part of each private frame, if parts are observed.
    parts: Option<FrameMap<Option<PartId>>>,
    /// What is mapped of each part.
    mapped: MappedParts,
}

/// Looks into the records of an address space.
struct Records<'s> {
    touched: Lookup<'s>,
    parts: PartLookup<'s>,
}

impl Seen {
    fn of<'s, 'm: 's>(
        machine: &Hosted,
        manager: &MemoryManager<'_, Hosted>,
        spaces: impl Iterator<Item = &'s Space<'m>>,
        by_part: bool,
    ) -> Self {
        let mut seen = Self { parts: by_part.then(FrameMap::default), ..Self::default() };
        for space in spaces {
            for (part, bytes) in space.parts.bytes().filter(|_| by_part) {
                seen.mapped.of(part).bytes += bytes;
            }
            let mut records = Records { touched: space.touched.lookup(), parts: space.parts.lookup() };
            for leaf in machine.leaves(space.mm.root()) {
                for step in 0..leaf.frames {
                    seen.frame(manager, leaf.frame.add(step), leaf.addr.page() + step, &mut records);
                }
            }
        }
        seen
    }

    fn frame(
        &mut self,
        manager: &MemoryManager<'_, Hosted>,
        frame: Frame,
        page: u64,
        records: &mut Records<'_>,
    ) {
        // The page cache and the manager hold their frames (the zero page too) besides mappings.
        if manager.pages().frames().is_held(frame) {
            return;
        }
        let block = frame.block();
        let is_whole = || manager.pages().memmap().block(block).state() == BlockState::Folio;
        if self.anonymous.insert(frame.0) && is_whole() {
            let first = block.first_frame().0;
            self.anonymous.insert_range(first, first + Order::BLOCK.frames());
            if let Some(parts) = &mut self.parts {
                let part = records.parts.find(page);
                (first..first + Order::BLOCK.frames()).for_each(|frame| parts.insert_first(frame, part));
            }
        }
        if let Some(parts) = &mut self.parts {
            let part = records.parts.find(page);
            parts.insert(frame.0, part);
            if let Some(part) = part {
                self.mapped.of(part).present += PAGE;
            }
        }
        if records.touched.contains(page) {
            self.touched.insert(frame.0);
        }
    }
}

/// Frames of the manager's own, which Linux has no such memory for: its records, the map counts of folios of whole blocks that
/// are mapped in pieces, and the zero page.
pub(super) fn records(manager: &MemoryManager<'_, Hosted>, info: &Meminfo) -> u64 {
    info.slab + manager.stat(quire::stats::Stat::NrMapCountPages) + 1
}
