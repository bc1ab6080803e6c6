//! The reverse map: from pages of a file to the address spaces, mappings and addresses that show them.
//!
//! Address spaces are visited in ascending order of their numbers, each once, under its own lock for reading, and all its
//! mappings of the pages in that one visit. Nothing is held from one to the next, and nothing is missed: a leaf comes to
//! an address space by a fault, which the caller has excluded, from another address of the same one, or from a parent,
//! whose number is smaller and whose lock `fork` holds until the child's mappings are known (decision 18).
#![forbid(unsafe_code)]

use core::ops::Range;

use super::body::{FoundBody, MmBody};
use super::memory::Memory;
use super::mm::Space;
use super::vma::{Backing, Vma};
use crate::addr::VirtRange;
use crate::filemap::FileNode;
use crate::limits::FRAME_SHIFT;
use crate::pgtable::PageTables;
use crate::platform::Platform;

/// An address space that maps the pages, with its lock held for reading.
pub(super) struct FoundSpace<'a, 'p, P: Platform> {
    memory: &'a Memory<'p, P>,
    pub(super) body: &'a MmBody,
    space: &'a Space,
    file: &'a FileNode,
}

impl<'p, P: Platform> Memory<'p, P> {
    /// Visits every address space that maps one of these pages of the file. The caller holds no lock, and sees to it that no
    /// fault maps one of them meanwhile. `log n` steps for each address space that maps the file, beside the visits.
    pub(super) fn each_mapper(
        &self,
        file: &FileNode,
        pages: &Range<u64>,
        mut visit: impl FnMut(&FoundSpace<'_, 'p, P>),
    ) {
        let mut after = 0;
        while let Some(body) = FoundBody::next(self.platform(), file, after, pages) {
            after = body.mapper.number();
            let space = body.space.read(self.platform());
            visit(&FoundSpace { memory: self, body: &body, space: &space, file });
        }
    }
}

impl<'a, 'p, P: Platform> FoundSpace<'a, 'p, P> {
    /// Shows every mapping of one of `pages`, and which of its addresses show them; `log n` steps for each.
    pub(super) fn each_part(&self, pages: &Range<u64>, mut show: impl FnMut(&Vma, VirtRange)) {
        let number = self.body.mapper.number();
        let mut after = None;
        loop {
            after = self.file.views(self.memory.platform()).next_in(number, after, pages);
            let Some((first, addr)) = after else { return };
            let mapping = self.space.tree.find(addr).filter(|vma| vma.range.start == addr);
            // A view may have outlived its mapping for a moment.
            let Some(vma) = mapping.filter(|vma| shows(vma, self.file, first)) else { continue };
            let shown = pages.start.max(first) - first..pages.end.min(first + vma.range.pages()) - first;
            show(
                vma,
                VirtRange::new(addr.add(shown.start << FRAME_SHIFT), addr.add(shown.end << FRAME_SHIFT)),
            );
        }
    }

    /// Its page tables.
    pub(super) fn tables(&self) -> PageTables<'_, 'p, P> {
        PageTables::new(self.memory.pages(), &self.body.context)
    }
}

/// Whether the mapping shows this file from this page on.
fn shows(vma: &Vma, of: &FileNode, first: u64) -> bool {
    match &vma.attributes.backing {
        Backing::Anonymous => false,
        Backing::File { file, page_offset } => core::ptr::eq(file.node(), of) && *page_offset == first,
    }
}
