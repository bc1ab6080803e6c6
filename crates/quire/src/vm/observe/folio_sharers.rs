//! How many address spaces map a folio, and whether it is exclusive to one.
//!
//! # How does an address space know that no other maps a folio?
//!
//! The folio's map count is the number of leaves that map any of it, with every scheme of counts. The address
//! space knows where it can map the folio: a page of a file where it has mapped that part of the file, an
//! anonymous page where it was first mapped, or as far from there as the mapping was moved. So it counts its
//! own leaves there, and compares. It holds its lock for writing, so its own leaves stay as they are. Any
//! other address space counts the folio up before it sets a leaf, and down after it has flushed one. So a
//! leaf elsewhere at the moment when the map count is read makes the count larger than ours. A leaf in a
//! table that `fork` shared is one leaf of several address spaces: if one of ours is in such a table, others
//! map the folio. The folio records no mappers, so it does not matter how many there were, and in which order
//! they left.
//!
//! (Linux records two address spaces, each with a count, in each large folio: exact as long as no third ever
//! mapped it beside them. Hildenbrand, "mm: MM owner tracking for large folios" (2025).)
#![forbid(unsafe_code)]

use crate::addr::{Frame, FrameRange, VirtAddr, VirtRange};
use crate::arch::EntryFlags;
use crate::limits::FRAME_SHIFT;
use crate::page_alloc::Origin;
use crate::pgtable::{Leaf, PageTables};
use crate::platform::Platform;
use crate::vm::mapping::moved::Moved;
use crate::vm::mapping::vma::{Backing, Vma};
use crate::vm::observe::view::{Observation, PageSurvey};
use crate::vm::rmap::reverse::FoundSpace;
use crate::vm::space::body::MmBody;
use crate::vm::space::found::FoundBody;
use crate::vm::space::state::Space;

/// Leaves of an address space that map a folio.
#[derive(Clone, Copy, Default)]
struct Own {
    leaves: u64,
    /// Whether one of them stands in a table that others reach.
    shared: bool,
}

impl Own {
    /// Counts the leaves in the range that map one of these frames.
    fn count<P: Platform>(
        &mut self,
        tables: &PageTables<'_, '_, P>,
        range: VirtRange,
        folio: FrameRange,
        kind: EntryFlags,
    ) {
        tables.leaves(range, |leaf| {
            if maps_any(&leaf, folio) && leaf.entry.flags().intersection(EntryFlags::ANON) == kind {
                self.leaves += 1;
                self.shared |= leaf.spaces > 1;
            }
            true
        });
    }
}

fn maps_any(leaf: &Leaf, folio: FrameRange) -> bool {
    let first = leaf.entry.frame();
    let end = first.0 + leaf.size.frames();
    !leaf.entry.has(EntryFlags::SPECIAL) && first.0 < folio.end().0 && folio.start.0 < end
}

impl<P: Platform> Observation<'_, '_, P> {
    /// See [`Mm::maps_exclusively`](crate::vm::Mm::maps_exclusively).
    pub(in crate::vm) fn maps_exclusively(self, addr: VirtAddr) -> Option<bool> {
        let space = self.lock();
        let tables = self.tables();
        let found = space.layout.user.contains(addr).then(|| tables.lookup(addr))?;
        let size = found.leaf_size().filter(|_| !found.entry.has(EntryFlags::SPECIAL))?;
        let frame = found.entry.frame().add((addr.0 & (size.bytes() - 1)) >> FRAME_SHIFT);
        let mut folio = self.memory.pages().counts().folio_maps(frame)?.folio;
        loop {
            let own = if found.entry.has(EntryFlags::ANON) {
                let origin = self.memory.pages().frames().origin(folio.start)?;
                anonymous(&space, &tables, folio, origin)
            } else {
                self.of_file(&space, space.tree.find(addr)?, addr, frame, folio)
            };
            // Read after our own leaves, which stay. If the folio was split meanwhile, look again.
            let maps = self.memory.pages().counts().folio_maps(frame)?;
            if maps.folio == folio {
                return Some(!own.shared && own.leaves == maps.mapcount);
            }
            folio = maps.folio;
        }
    }

    /// Our leaves of a folio of a file, of which a mapping maps `frame` at `addr`.
    fn of_file(self, space: &Space, vma: &Vma, addr: VirtAddr, frame: Frame, folio: FrameRange) -> Own {
        let mut own = Own::default();
        let Backing::File { file, page_offset } = &vma.attributes.backing else { return own };
        let page = page_offset + ((addr.0 - vma.range.start.0) >> FRAME_SHIFT);
        let first = page.saturating_sub(frame.0 - folio.start.0);
        let pages = first..first + folio.count;
        let found = FoundSpace::new(self.memory, self.body(), space, file.node());
        found.each_part(&pages, |_, range| own.count(&self.tables(), range, folio, EntryFlags::NONE));
        own
    }
}

/// Our leaves of an anonymous folio. The caller holds the address space's lock.
fn anonymous<P: Platform>(
    space: &Space,
    tables: &PageTables<'_, '_, P>,
    folio: FrameRange,
    origin: Origin,
) -> Own {
    let mut own = Own::default();
    let bytes = folio.count << FRAME_SHIFT;
    let there = VirtRange::from_len(origin.addr(), bytes).intersect(space.layout.user);
    let mut count = |range: VirtRange| own.count(tables, range, folio, EntryFlags::ANON);
    let moved = |vma: &Vma| vma.attributes.moved != Moved::NONE;
    for vma in space.tree.overlapping(there).filter(|vma| !moved(vma)) {
        count(vma.range.intersect(there));
    }
    for vma in space.tree.iter().filter(|vma| space.moved && moved(vma)) {
        match vma.attributes.moved.place_of(origin.addr()) {
            Some(at) => count(VirtRange::from_len(at, bytes).intersect(vma.range)),
            None => count(vma.range),
        }
    }
    own
}

impl<P: Platform> PageSurvey<'_, '_, P> {
    /// How many address spaces map any part of the folio in use around a frame; `None` if there is none.
    /// Exact while no part is mapped, unmapped or moved; else each counts as of its visit. The caller holds
    /// no lock.
    ///
    /// For anonymous memory it visits each address space of the family. For a page of a file that several
    /// leaves map it reads every leaf of a file in every address space, as no link leads from a page to its
    /// file. Callers that ask often use [`Mm::maps_exclusively`](crate::vm::Mm::maps_exclusively).
    pub(crate) fn folio_spaces(self, frame: Frame) -> Option<u64> {
        let pages = self.pages();
        let maps = pages.counts().folio_maps(frame)?;
        let folio = maps.folio;
        let of_file = pages.frames().is_held(folio.start) && pages.frames().is_of_file(folio.start);
        if maps.mapcount == 0 || of_file && maps.mapcount == 1 {
            // Tables that map pages of files are never shared.
            return Some(maps.mapcount);
        }
        let (mut spaces, mut place) = (0, (0, 0));
        let origin = if of_file { None } else { Some(pages.frames().origin(folio.start)?) };
        while let Some(body) = match origin {
            None => FoundBody::next_of_all(self.0, place).map(|(body, next)| {
                place = next;
                body
            }),
            Some(origin) => FoundBody::next_of_family(self.0, origin.family(), place.1),
        } {
            place.1 = body.mapper.number();
            spaces += u64::from(self.maps_folio(&body, folio, origin));
        }
        Some(spaces)
    }

    /// Whether an address space maps any part of a folio; `origin` is `None` for a file's.
    fn maps_folio(self, body: &MmBody, folio: FrameRange, origin: Option<Origin>) -> bool {
        let space = body.space.read(self.platform());
        let tables = body.tables(self.pages());
        let Some(origin) = origin else {
            let of_file = |vma: &&Vma| matches!(vma.attributes.backing, Backing::File { .. });
            return space.tree.iter().filter(of_file).any(|vma| {
                let mut found = false;
                tables.leaves(vma.range, |leaf| {
                    found = maps_any(&leaf, folio) && !leaf.entry.has(EntryFlags::ANON);
                    !found
                });
                found
            });
        };
        anonymous(&space, &tables, folio, origin).leaves > 0
    }
}
