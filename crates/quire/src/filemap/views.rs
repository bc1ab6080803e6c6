//! Which mappings a file has: the reverse map of its pages.
//!
//! Every mapping of a file has a [`View`] in its record: the pages that it shows, at which address of which
//! address space. The views of a file stand in one tree, under a lock of the file's own, ordered by address
//! space and first page; each subtree knows the last page that it shows. So a search finds the address spaces
//! that map given pages one after the other, in ascending order of their numbers, in `log n` steps each, and
//! need not hold the lock from one to the next.
//!
//! An address space changes its views while it holds its own lock for writing. So a task that finds it here,
//! takes its lock, and then looks here for it again sees exactly its mappings. Views of mappings that are
//! gone may stay for a moment, so a task looks up what a view says among the mappings before it relies on it.

use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::addr::VirtAddr;
use crate::avl::{Avl, Links, Node, Ptr};

/// An address space, as files know it. It does not move while a view names it or it is pinned.
#[derive(Debug)]
pub struct Mapper {
    number: u64,
    pins: AtomicU32,
}

/// The part of a file that one mapping shows. Its fields are used under the file's lock only.
#[derive(Debug)]
pub struct View {
    links: Links<Self>,
    shown: Option<Shown>,
    /// The end of the last pages in the subtree.
    last: u64,
}

/// A pointer to a view.
pub type ViewPtr = Ptr<View>;

/// What a file knows of a view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Shown {
    mapper: NonNull<Mapper>,
    /// Here so that a search need not follow the pointer.
    number: u64,
    pages: (u64, u64),
    addr: VirtAddr,
}

/// Address space, first page, address: the order of the views.
type Key = (u64, u64, u64);

// SAFETY: V1: a view is reached under its file's lock, and the mapper that it names outlives it, on any CPU.
unsafe impl Send for View {}

/// The views of one file.
///
/// # Invariants
///
/// V1. A view in the tree is live, and so is the mapper that it names: a mapping's memory is freed, and an
///     address space taken apart, only after its views were hidden.
#[derive(Debug)]
pub struct FileViews {
    avl: Avl<View>,
}

impl Mapper {
    /// The address space with this number. Numbers are not used twice; a child's is larger than its parent's.
    pub const fn new(number: u64) -> Self {
        Self { number, pins: AtomicU32::new(0) }
    }

    /// Its number.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Keeps the address space from being taken apart. The caller holds a lock that keeps it alive.
    pub fn pin(&self) {
        self.pins.fetch_add(1, Ordering::Relaxed);
    }

    /// Gives up a pin.
    pub fn unpin(&self) {
        let before = self.pins.fetch_sub(1, Ordering::Release);
        debug_assert!(before > 0, "unpinned more often than pinned");
    }

    /// Whether it is pinned.
    pub(crate) fn is_pinned(&self) -> bool {
        self.pins.load(Ordering::Acquire) != 0
    }
}

impl View {
    /// A view that no file knows.
    pub const fn new() -> Self {
        Self { links: Links::leaf(None), shown: None, last: 0 }
    }

    fn key(&self) -> Key {
        self.shown.map_or((0, 0, 0), |shown| (shown.number, shown.pages.0, shown.addr.0))
    }

    fn end(&self) -> u64 {
        self.shown.map_or(0, |shown| shown.pages.1)
    }
}

impl Default for View {
    fn default() -> Self {
        Self::new()
    }
}

impl Node for View {
    type Sum = u64;

    fn links(&self) -> &Links<Self> {
        &self.links
    }

    fn links_mut(&mut self) -> &mut Links<Self> {
        &mut self.links
    }

    fn sum(&self) -> u64 {
        self.last
    }

    fn note(&mut self, left: Option<u64>, right: Option<u64>) {
        self.last = self.end().max(left.unwrap_or(0)).max(right.unwrap_or(0));
    }
}

impl FileViews {
    /// The file is not mapped.
    pub(super) const fn new() -> Self {
        Self { avl: Avl::new() }
    }

    /// Whether the file is not mapped.
    pub fn is_empty(&self) -> bool {
        self.avl.root.is_none()
    }

    /// How many mappings there are. Visits each.
    pub fn count(&self) -> usize {
        let first = self.avl.root.map(|root| self.avl.leftmost(root));
        core::iter::successors(first, |&at| self.avl.successor(at)).count()
    }

    /// Notes that this view's mapping, which the caller owns, shows `pages` at `addr`, whatever it showed
    /// before.
    pub fn show(
        &mut self,
        view: ViewPtr,
        mapper: NonNull<Mapper>,
        number: u64,
        pages: Range<u64>,
        addr: VirtAddr,
    ) {
        let shown = Shown { mapper, number, pages: (pages.start, pages.end), addr };
        if self.avl.node(view).shown == Some(shown) {
            return;
        }
        self.hide(view);
        self.avl.node_mut(view).shown = Some(shown);
        let key = self.avl.node(view).key();
        let (mut parent, mut at, mut left) = (None, self.avl.root, false);
        while let Some(here) = at {
            parent = at;
            left = key < self.avl.node(here).key();
            at = if left { self.avl.left(here) } else { self.avl.right(here) };
        }
        self.avl.attach(view, parent, left);
        self.avl.repair_upwards(view, None);
    }

    /// The same, but what it showed before stays. Returns whether that is more.
    pub fn show_more(
        &mut self,
        view: ViewPtr,
        mapper: NonNull<Mapper>,
        number: u64,
        pages: Range<u64>,
        addr: VirtAddr,
    ) -> bool {
        let before = self.avl.node(view).shown.map_or((pages.start, pages.end), |shown| shown.pages);
        let both = pages.start.min(before.0)..pages.end.max(before.1);
        let more = both != pages;
        self.show(view, mapper, number, both, addr);
        more
    }

    /// Forgets a mapping, also one that is not known. The caller owns it.
    pub fn hide(&mut self, view: ViewPtr) {
        if self.avl.node_mut(view).shown.take().is_none() {
            return;
        }
        self.avl.remove(view, None);
    }

    /// Whether this is what the file knows of a mapping. The caller owns the mapping.
    pub fn knows(&self, view: ViewPtr, number: u64, pages: Range<u64>, addr: VirtAddr) -> bool {
        self.avl.node(view).key() == (number, pages.start, addr.0) && self.avl.node(view).end() == pages.end
    }

    /// The first address space with a number above `after` that maps one of `pages`, pinned.
    pub(crate) fn next_mapper(&self, after: u64, pages: &Range<u64>) -> Option<NonNull<Mapper>> {
        let shown = self.next_shown((after, u64::MAX, u64::MAX), pages)?;
        // SAFETY: V1: the caller holds the lock of the file with these views, which keeps the mapper alive.
        unsafe { shown.mapper.as_ref() }.pin();
        Some(shown.mapper)
    }

    /// The first mapping of one of `pages` behind `after` by the address space `number`: first page and
    /// address.
    pub(crate) fn next_in(
        &self,
        number: u64,
        after: Option<(u64, VirtAddr)>,
        pages: &Range<u64>,
    ) -> Option<(u64, VirtAddr)> {
        let before = (number - 1, u64::MAX, u64::MAX);
        let shown = self.next_shown(after.map_or(before, |(page, addr)| (number, page, addr.0)), pages)?;
        (shown.number == number).then_some((shown.pages.0, shown.addr))
    }

    /// The first view behind `after` that shows one of `pages`: `log n` steps for each address space passed.
    fn next_shown(&self, mut after: Key, pages: &Range<u64>) -> Option<Shown> {
        loop {
            let at = self.next_ending_behind(after, pages.start)?;
            let shown = self.avl.node(at).shown?;
            if shown.pages.0 < pages.end {
                return Some(shown);
            }
            // The other views of this address space begin even later.
            after = (shown.number, u64::MAX, u64::MAX);
        }
    }

    /// The first view behind `after` whose pages end behind `page`.
    fn next_ending_behind(&self, after: Key, page: u64) -> Option<ViewPtr> {
        let (mut at, mut next) = (self.avl.root, None);
        while let Some(here) = at {
            if self.avl.node(here).key() > after {
                next = at;
                at = self.avl.left(here);
            } else {
                at = self.avl.right(here);
            }
        }
        let mut at = next?;
        loop {
            if self.avl.node(at).end() > page {
                return Some(at);
            }
            if let Some(right) = self.avl.right(at).filter(|&right| self.avl.node(right).last > page) {
                return self.first_ending_behind(right, page);
            }
            let mut below = at;
            at = loop {
                let parent = self.avl.parent(below)?;
                if self.avl.left(parent) == Some(below) {
                    break parent;
                }
                below = parent;
            };
        }
    }

    /// The first view of a subtree, which has one, whose pages end behind `page`.
    fn first_ending_behind(&self, mut at: ViewPtr, page: u64) -> Option<ViewPtr> {
        loop {
            at = match self.avl.left(at).filter(|&left| self.avl.node(left).last > page) {
                Some(left) => left,
                None if self.avl.node(at).end() > page => return Some(at),
                None => self.avl.right(at)?,
            };
        }
    }
}

#[cfg(test)]
mod tests;
