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
    /// Records of mappings, of files, of the page cache and of map counts, and the page of zeroes.
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
    ///
    /// # Errors
    /// The frames in use, where they cannot be what mappings, files, tables and records own.
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
        let Seen { anonymous, touched, blocks } = Seen::of(machine, manager, spaces);
        let (anonymous, touched) = (anonymous.len(), touched.len());
        let owned = anonymous + info.cached + info.shmem + info.page_tables;
        let records = info.frames.used.saturating_sub(owned);
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
        // Small objects, the page of zeroes, and at most one frame of map counts for a block that is mapped in pieces.
        let least = info.slab + 1;
        if (least..=least + blocks).contains(&records) && owned <= info.frames.used {
            return Ok(());
        }
        Err(format!(
            "{} frames are in use: {anonymous} private, {} cached, {} shared, {} of tables, {} of small objects, and {blocks} blocks are mapped in pieces",
            info.frames.used, info.cached, info.shmem, info.page_tables, info.slab
        ))
    }

    /// The largest that was seen.
    pub(super) const fn usage(&self) -> Usage {
        self.usage
    }
}

/// What all page tables together show.
#[derive(Default)]
struct Seen {
    /// Frames that only mappings own.
    anonymous: PageSet,
    /// Those among them that a program has touched.
    touched: PageSet,
    /// Blocks of which a frame is mapped by itself.
    blocks: u64,
}

impl Seen {
    fn of<'s, 'm: 's>(
        machine: &Hosted,
        manager: &MemoryManager<'_, Hosted>,
        spaces: impl Iterator<Item = &'s Space<'m>>,
    ) -> Self {
        let (mut seen, mut single) = (Self::default(), PageSet::default());
        for space in spaces {
            for leaf in machine.leaves(space.mm.root()) {
                if leaf.frames == 1 {
                    single.insert(leaf.frame.0);
                }
                for step in 0..leaf.frames {
                    let frame = leaf.frame.add(step);
                    // What the page cache owns, and the page of zeroes, is held besides being mapped.
                    if manager.pages().is_held(frame) {
                        continue;
                    }
                    seen.anonymous.insert(frame.0);
                    if space.touched.contains(leaf.addr.page() + step) {
                        seen.touched.insert(frame.0);
                    }
                }
            }
        }
        seen.blocks = single.chunks();
        seen
    }
}
