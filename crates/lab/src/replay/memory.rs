//! Peak memory use, by kind.
//!
//! Memory shrinks only by calls that free some, so it is sampled before each of those, and the peak is exact.
//! The full sample, which reads every page table, is taken only when at least a sixty-fourth more is in use
//! than at the last one.

use hosted::Hosted;
use quire::addr::{Frame, Order};
use quire::manager::MemoryManager;
use quire::memmap::BlockState;
use serde::Serialize;

use super::pages::PageSet;
use super::processes::Space;
use super::verb::PAGE;

/// Memory in use at one moment, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Usage {
    /// Events of the trace that were replayed until then.
    pub(super) event: u64,
    /// The sum of the following.
    pub(super) total: u64,
    /// Private folios, each counted once however many address spaces map it.
    pub(super) anonymous: u64,
    /// Page cache.
    pub(super) file: u64,
    /// Shared anonymous memory.
    pub(super) shared: u64,
    /// Page-table pages.
    pub(super) page_tables: u64,
    /// The allocator's block records and page descriptors.
    pub(super) metadata: u64,
    /// Records of mappings, files, page cache and map counts, and the zero page.
    pub(super) records: u64,
    /// The part of `anonymous` that the program has touched.
    pub(super) touched: u64,
    /// The part that only the folio size populated.
    pub(super) wasted: u64,
}

/// The peak so far.
#[derive(Default)]
pub(super) struct Peak {
    usage: Usage,
}

impl Peak {
    /// Takes a sample, if more is in use than ever before.
    ///
    /// # Errors
    /// The frames in use, if mappings, files, tables and records do not own exactly these.
    pub(super) fn look<'s, 'm: 's>(
        &mut self,
        event: u64,
        machine: &Hosted,
        manager: &MemoryManager<'_, Hosted>,
        spaces: impl Iterator<Item = &'s Space<'m>>,
    ) -> Result<(), String> {
        let info = manager.meminfo();
        let total = (info.frames.used + info.frames.metadata) * PAGE;
        if total <= self.usage.total + self.usage.total / 64 {
            return Ok(());
        }
        let seen = Seen::of(machine, manager, spaces);
        let (anonymous, touched) = (seen.anonymous.len(), seen.touched.len());
        // The zero page is the manager's own.
        let records = info.slab + count_frames(manager) + 1;
        let owned = anonymous + info.cached + info.shmem + info.page_tables + records;
        self.usage = Usage {
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
        if owned == info.frames.used {
            return Ok(());
        }
        Err(format!(
            "{} frames are in use: {anonymous} private, {} cached, {} shared, {} of tables and {records} of records are {owned}",
            info.frames.used, info.cached, info.shmem, info.page_tables
        ))
    }

    /// The peak.
    pub(super) const fn usage(&self) -> Usage {
        self.usage
    }
}

/// The contents of all page tables.
#[derive(Default)]
struct Seen {
    /// Frames that only mappings own. A folio of a whole block stays in use until its last page is unmapped, so it counts
    /// as a whole.
    anonymous: PageSet,
    /// Those among them that a program has touched and still maps.
    touched: PageSet,
}

impl Seen {
    fn of<'s, 'm: 's>(
        machine: &Hosted,
        manager: &MemoryManager<'_, Hosted>,
        spaces: impl Iterator<Item = &'s Space<'m>>,
    ) -> Self {
        let mut seen = Self::default();
        for space in spaces {
            for leaf in machine.leaves(space.mm.root()) {
                for step in 0..leaf.frames {
                    seen.frame(
                        manager,
                        leaf.frame.add(step),
                        space.touched.contains(leaf.addr.page() + step),
                    );
                }
            }
        }
        seen
    }

    fn frame(&mut self, manager: &MemoryManager<'_, Hosted>, frame: Frame, touched: bool) {
        // The page cache and the manager hold their frames (the zero page too) besides mappings.
        if manager.pages().frames().is_held(frame) {
            return;
        }
        let block = frame.block();
        let whole = manager.pages().memmap().block(block).state() == BlockState::Folio;
        if self.anonymous.insert(frame.0) && whole {
            let first = block.first_frame().0;
            self.anonymous.insert_range(first, first + Order::BLOCK.frames());
        }
        if touched {
            self.touched.insert(frame.0);
        }
    }
}

/// Frames that hold map counts: of folios of whole blocks that are mapped in pieces.
fn count_frames(manager: &MemoryManager<'_, Hosted>) -> u64 {
    manager.stat(quire::stats::Stat::NrMapCountPages)
}
