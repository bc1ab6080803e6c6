//! How much memory is in use and for what, when it is most.
//!
//! Memory only shrinks by calls that give some back, so it is looked at before each of those, and the peak is met
//! exactly; but the close look, which reads every page table, is taken only when at least a sixty-fourth more is in use
//! than at the last one.

use hosted::Hosted;
use quire::manager::MemoryManager;
use serde::Serialize;

use super::pages::PageSet;
use super::processes::Space;
use super::verb::PAGE;

/// Memory in use at one moment, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Usage {
    /// Events of the trace that were replayed until then.
    pub(super) event: u64,
    /// All that follows together.
    pub(super) total: u64,
    /// Private pages that mappings own, each counted once however many address spaces share it.
    pub(super) anonymous: u64,
    /// Page cache.
    pub(super) file: u64,
    /// Nameless shared memory.
    pub(super) shared: u64,
    /// Page-table pages.
    pub(super) page_tables: u64,
    /// The allocator's block records and page descriptors.
    pub(super) metadata: u64,
    /// Records of mappings, of files and of the page cache, and the page of zeroes.
    pub(super) records: u64,
    /// The part of `anonymous` that the program has touched.
    pub(super) touched: u64,
    /// The part that only the folio size brought in.
    pub(super) wasted: u64,
}

/// The peak so far.
#[derive(Default)]
pub(super) struct Peak {
    usage: Usage,
}

impl Peak {
    /// Takes a look, if more is in use than ever before.
    pub(super) fn look<'s, 'm: 's>(
        &mut self,
        event: u64,
        machine: &Hosted,
        manager: &MemoryManager<'_, Hosted>,
        spaces: impl Iterator<Item = &'s Space<'m>>,
    ) {
        let info = manager.meminfo();
        let total = (info.frames.used + info.frames.metadata) * PAGE;
        if total <= self.usage.total + self.usage.total / 64 {
            return;
        }
        let (mut anonymous, mut touched, mut tables) = (PageSet::default(), PageSet::default(), 0);
        for space in spaces {
            tables += space.mm.rss().page_tables;
            for leaf in machine.leaves(space.mm.root()) {
                for step in 0..leaf.frames {
                    let frame = leaf.frame.add(step);
                    // What the page cache owns, and the page of zeroes, is held besides being mapped.
                    if manager.pages().is_held(frame) {
                        continue;
                    }
                    anonymous.insert(frame.0);
                    if space.touched.contains(leaf.addr.page() + step) {
                        touched.insert(frame.0);
                    }
                }
            }
        }
        let (anonymous, touched) = (anonymous.len(), touched.len());
        let known = anonymous + info.cached + info.shmem + tables;
        self.usage = Usage {
            event,
            total,
            anonymous: anonymous * PAGE,
            file: info.cached * PAGE,
            shared: info.shmem * PAGE,
            page_tables: tables * PAGE,
            metadata: info.frames.metadata * PAGE,
            records: info.frames.used.saturating_sub(known) * PAGE,
            touched: touched * PAGE,
            wasted: (anonymous - touched) * PAGE,
        };
    }

    /// The largest that was seen.
    pub(super) const fn usage(&self) -> Usage {
        self.usage
    }
}
