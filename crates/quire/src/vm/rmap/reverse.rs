//! From pages of a file, and from anonymous frames, to the address spaces and addresses that map them.
//!
//! A file knows its mappings. An anonymous frame knows the address at which it was first mapped and the
//! family of the address space. Each address space that maps it is of that family and maps it at that
//! address, unless the mapping was moved; mappings record how far they were moved (decision 21).
//!
//! Each address space is visited once, in ascending order of the numbers, under its own lock; the visit covers
//! all its mappings of the pages. No lock is held between visits, and still no leaf is missed. A new leaf comes
//! from a fault, which the caller has excluded; from another address of the same address space; or from a
//! parent, whose number is smaller and whose lock `fork` holds until the child can be found (decision 20).

use core::ops::Range;

use crate::addr::{Frame, FrameRange, Order, PageSize, VirtAddr, VirtRange};
use crate::arch::EntryFlags;
use crate::error::SplitError;
use crate::filemap::FileNode;
use crate::limits::{BLOCK_FRAMES, FRAME_SHIFT};
use crate::pgtable::PageTables;
use crate::platform::Platform;
use crate::vm::handle::handle;
use crate::vm::mapping::moved::Moved;
use crate::vm::mapping::vma::{Backing, Vma};
use crate::vm::space::body::MmBody;
use crate::vm::space::found::FoundBody;
use crate::vm::space::shared::MmShared;
use crate::vm::space::state::Space;

/// An address space that maps the pages, with its lock held for reading or for writing.
pub(in crate::vm) struct FoundSpace<'a, 'p, P: Platform> {
    pub(in crate::vm) memory: &'a MmShared<'p, P>,
    pub(in crate::vm) body: &'a MmBody,
    space: &'a Space,
    file: &'a FileNode,
}

handle! { ReverseMap of MmShared }

impl<'p, P: Platform> ReverseMap<'_, 'p, P> {
    /// Visits every address space that maps one of these pages of the file. The caller holds no lock, and
    /// lets no fault map one of them meanwhile. `log n` steps for each address space of the file.
    pub(in crate::vm) fn each_mapper(
        self,
        file: &FileNode,
        pages: &Range<u64>,
        mut visit: impl FnMut(&FoundSpace<'_, 'p, P>),
    ) {
        self.each_body(file, pages, |body| {
            let space = body.space.read(self.platform());
            visit(&FoundSpace { memory: self.0, body, space: &space, file });
        });
    }

    /// The same for a caller that unmaps or replaces leaves: under each address space's lock for writing.
    pub(in crate::vm) fn each_mapper_alone(
        self,
        file: &FileNode,
        pages: &Range<u64>,
        mut visit: impl FnMut(&FoundSpace<'_, 'p, P>),
    ) {
        self.each_body(file, pages, |body| {
            let space = body.space.write(self.platform());
            visit(&FoundSpace { memory: self.0, body, space: &space, file });
        });
    }

    fn each_body(self, file: &FileNode, pages: &Range<u64>, mut visit: impl FnMut(&FoundBody)) {
        let mut after = 0;
        while let Some(body) = FoundBody::next(self.platform(), file, after, pages) {
            after = body.mapper.number();
            visit(&body);
        }
    }

    /// Visits every address space that maps this anonymous frame, with the address at which it does, under
    /// its lock for reading. The caller holds no lock. Takes `log n` steps for each address space of the
    /// family. In those that moved memory it checks each moved mapping too, or each leaf of a mapping whose
    /// parts were moved by different distances.
    pub(in crate::vm) fn each_anon_mapping(self, frame: Frame, mut visit: impl FnMut(&MmBody, VirtAddr)) {
        let Some(origin) = self.pages().frames().origin(frame) else { return };
        let mut after = 0;
        while let Some(body) = FoundBody::next_of_family(self.0, origin.family(), after) {
            after = body.mapper.number();
            let space = body.space.read(self.platform());
            let tables = body.tables(self.pages());
            if let Some(addr) = place_in(&space, &tables, frame, origin.addr()) {
                visit(&body, addr);
            }
        }
    }

    /// Shows the root of each address space that maps this anonymous frame, and where. The caller holds no
    /// lock.
    pub(crate) fn mappings(self, frame: Frame, mut show: impl FnMut(Frame, VirtAddr)) {
        self.each_anon_mapping(frame, |body, addr| show(body.context.root(), addr));
    }

    /// Splits the mapped folio that starts at `frame` into folios of order `to`, after splitting large leaves
    /// that map it. Returns how many frames became free because no leaf maps them. The caller holds no lock,
    /// so the folio may be unmapped at any time.
    ///
    /// # Errors
    /// As [`PageAllocator::split_mapped`](crate::page_alloc::PageAllocator::split_mapped);
    /// [`SplitError::InUse`] for a page of a pool.
    pub(crate) fn split_folio(self, frame: Frame, to: Order) -> Result<u64, SplitError> {
        if [Order::BLOCK, Order::GIGANTIC].iter().any(|&order| self.pages().frames().is_huge(frame, order)) {
            return Err(SplitError::InUse);
        }
        let frames = self.pages().frames().folio_rest(frame);
        if frames == Order::GIGANTIC.frames() && to < Order::GIGANTIC {
            self.split_leaves(frame, PageSize::Size1G)?;
        }
        if to < Order::BLOCK {
            let blocks = (0..frames).step_by(BLOCK_FRAMES);
            blocks.map(|at| frame.add(at)).try_for_each(|part| self.split_leaves(part, PageSize::Size2M))?;
        }
        // SAFETY: invariant 1: leaves own the folio, or what holds it keeps it in use; nothing else names a
        // frame of it.
        unsafe { self.pages().split_mapped(frame, to) }
    }

    /// Splits every leaf of this size that maps the frame.
    fn split_leaves(self, frame: Frame, size: PageSize) -> Result<(), SplitError> {
        let mut split = Ok(());
        self.each_anon_mapping(frame, |body, addr| {
            let tables = body.tables(self.pages());
            if split.is_ok() && tables.lookup(addr).leaf_size() == Some(size) {
                let part = if size == PageSize::Size1G { PageSize::Size2M } else { PageSize::Size4K };
                split = tables.split_at(addr.align_down(size.bytes()).add(part.bytes()));
            }
        });
        split.map_err(|_| SplitError::OutOfMemory)
    }
}

impl<'a, 'p, P: Platform> FoundSpace<'a, 'p, P> {
    /// The caller holds the lock of the address space.
    pub(in crate::vm) fn new(
        memory: &'a MmShared<'p, P>,
        body: &'a MmBody,
        space: &'a Space,
        file: &'a FileNode,
    ) -> Self {
        Self { memory, body, space, file }
    }

    /// Shows every mapping of one of `pages`, and its addresses that map them; `log n` steps for each.
    pub(in crate::vm) fn each_part(&self, pages: &Range<u64>, mut show: impl FnMut(&Vma, VirtRange)) {
        let mut after = None;
        while let Some((place, vma, range)) = self.part_after(pages, after) {
            after = Some(place);
            show(vma, range);
        }
    }

    /// The next of these mappings after the place `after` in their order, with its place.
    pub(in crate::vm) fn part_after(
        &self,
        pages: &Range<u64>,
        mut after: Option<(u64, VirtAddr)>,
    ) -> Option<((u64, VirtAddr), &'a Vma, VirtRange)> {
        let number = self.body.mapper.number();
        loop {
            let (first, addr) = self.file.views(self.memory.platform()).next_in(number, after, pages)?;
            after = Some((first, addr));
            let mapping = self.space.tree.find(addr).filter(|vma| vma.range.start == addr);
            // A view may outlive its mapping for a moment.
            let Some(vma) = mapping.filter(|vma| shows(vma, self.file, first)) else { continue };
            let shown = pages.start.max(first) - first..pages.end.min(first + vma.range.pages()) - first;
            let range =
                VirtRange::new(addr.add(shown.start << FRAME_SHIFT), addr.add(shown.end << FRAME_SHIFT));
            return Some(((first, addr), vma, range));
        }
    }

    pub(in crate::vm) fn tables(&self) -> PageTables<'_, 'p, P> {
        self.body.tables(self.memory.pages())
    }
}

/// Where an address space, whose lock is held, maps this anonymous frame, which was first mapped at `origin`.
pub(in crate::vm) fn place_in<P: Platform>(
    space: &Space,
    tables: &PageTables<'_, '_, P>,
    frame: Frame,
    origin: VirtAddr,
) -> Option<VirtAddr> {
    let there = Some(origin).filter(|&at| space.layout.user.contains(at) && maps(tables, at, frame));
    there.or_else(|| find_moved(space, tables, frame, origin))
}

fn maps<P: Platform>(tables: &PageTables<'_, '_, P>, addr: VirtAddr, frame: Frame) -> bool {
    let found = tables.lookup(addr);
    let Some(size) = found.leaf_size() else { return false };
    let inside = (addr.0 & (size.bytes() - 1)) >> FRAME_SHIFT;
    let private = found.entry.has(EntryFlags::ANON) && !found.entry.has(EntryFlags::SPECIAL);
    private && found.entry.frame().add(inside) == frame
}

/// The same, in mappings that were moved.
fn find_moved<P: Platform>(
    space: &Space,
    tables: &PageTables<'_, '_, P>,
    frame: Frame,
    origin: VirtAddr,
) -> Option<VirtAddr> {
    let moved = |vma: &&Vma| vma.attributes.moved != Moved::NONE;
    space.tree.iter().filter(|_| space.moved).filter(moved).find_map(|vma| {
        match vma.attributes.moved.place_of(origin) {
            Some(at) => Some(at).filter(|&at| vma.range.contains(at) && maps(tables, at, frame)),
            None => find_leaf(tables, vma.range, FrameRange::folio(frame, Order::FRAME), true),
        }
    })
}

/// Where the range maps one of these frames, as anonymous memory or not; returns the address at which the
/// first of them is, or would be. Reads each leaf.
pub(in crate::vm) fn find_leaf<P: Platform>(
    tables: &PageTables<'_, '_, P>,
    range: VirtRange,
    wanted: FrameRange,
    anonymous: bool,
) -> Option<VirtAddr> {
    let mut found = None;
    tables.runs(range, |run| {
        let (first, count) = (run.first.frame(), run.count * run.size.frames());
        let alike = run.first.has(EntryFlags::ANON) == anonymous && !run.first.has(EntryFlags::SPECIAL);
        if alike && first.0 < wanted.end().0 && wanted.start.0 < first.0 + count {
            let back = first.0.wrapping_sub(wanted.start.0) << FRAME_SHIFT;
            found = Some(VirtAddr(run.addr.0.wrapping_sub(back)));
        }
    });
    found
}

/// Whether the mapping starts with this page of this file.
fn shows(vma: &Vma, of: &FileNode, first: u64) -> bool {
    match &vma.attributes.backing {
        Backing::Anonymous => false,
        Backing::File { file, page_offset } => core::ptr::eq(file.node(), of) && *page_offset == first,
    }
}
