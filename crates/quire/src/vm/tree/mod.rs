//! The ordered tree of an address space's mappings.
//!
//! An AVL tree ([`crate::avl`]) keyed by start address. Each node keeps the largest gap in front of any node
//! of its subtree, so one descent finds the highest free place (file `gaps.rs`). The caller allocates the
//! nodes ([`VmaBox`]); the tree never allocates.
//!
//! # Invariants
//!
//! T1. Every node reachable from `root` is live and owned by this tree: it came in as a [`VmaBox`], and
//!     leaves only by being unlinked and returned as one. Meanwhile no pointer to it exists outside the tree.
//! T2. Every `Ptr` that code of this module holds names a node of the tree it is used with: it was read from
//!     `root` or a link since the node was last known to be linked. No `Ptr` leaves the module.
//! T3. Only `node` and `node_mut` make references to nodes. They borrow the tree, shared or exclusively, so
//!     no two references that conflict exist at once.
//! T4. Mappings are in ascending order, not empty, and do not overlap.
//! T5. A child's `parent` names its parent; the root's is empty; there are `count` nodes.
//! T6. `height` is one more than the larger of the children's heights, which differ by at most one.
//! T7. `gap` is the number of bytes between the predecessor's end (0 for the first) and the node's guarded
//!     start; `max_gap` is the largest `gap` of the subtree.

mod changes;
pub mod edit;
mod gaps;
pub mod layout;
mod list;
mod node;
mod validate;

pub use list::VmaList;
pub use node::{VmaBox, VmaNode, VmaRecord};
pub use validate::TreeFault;

type Ptr = crate::avl::Ptr<VmaNode>;

use crate::addr::{VirtAddr, VirtRange};
use crate::avl::Avl;
use crate::vm::mapping::vma::{Vma, VmaAttributes};

const NOWHERE: VirtRange = VirtRange { start: VirtAddr(0), end: VirtAddr(0) };

/// The mappings of one address space.
#[derive(Debug, Default)]
pub struct VmaTree {
    avl: Avl<VmaNode>,
    count: usize,
    /// Where mappings of files were added or changed since [`Self::take_changed`].
    changed: [VirtRange; 2],
}

impl VmaTree {
    /// No mapping.
    pub const fn new() -> Self {
        Self { avl: Avl::new(), count: 0, changed: [NOWHERE; 2] }
    }

    /// How many mappings there are.
    #[inline]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether there is no mapping.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.avl.root.is_none()
    }

    /// The mapping that holds `addr`.
    #[inline]
    pub fn find(&self, addr: VirtAddr) -> Option<&Vma> {
        // Not by `find_from`: most faults find a mapping, and need no best one so far.
        let mut at = self.avl.root;
        while let Some(here) = at {
            let node = self.avl.node(here);
            if addr >= node.vma.range.end {
                at = node.right();
            } else if addr < node.vma.range.start {
                at = node.left();
            } else {
                return Some(&node.vma);
            }
        }
        None
    }

    /// The first mapping that ends after `addr`: the one that holds it, or else the next.
    #[inline]
    pub fn find_from(&self, addr: VirtAddr) -> Option<&Vma> {
        self.ptr_from(addr).map(|at| &self.avl.node(at).vma)
    }

    /// The last mapping that starts before `addr`.
    #[inline]
    pub fn find_before(&self, addr: VirtAddr) -> Option<&Vma> {
        self.ptr_before(addr).map(|at| &self.avl.node(at).vma)
    }

    /// The first mapping that shares a byte with `range`.
    pub fn first_in(&self, range: VirtRange) -> Option<&Vma> {
        self.ptr_in(range).map(|at| &self.avl.node(at).vma)
    }

    fn ptr_in(&self, range: VirtRange) -> Option<Ptr> {
        let starts_before = |&at: &Ptr| self.avl.node(at).vma.range.start < range.end;
        self.ptr_from(range.start).filter(|at| !range.is_empty() && starts_before(at))
    }

    /// The mappings that share a byte with `range`, in ascending order.
    pub fn overlapping(&self, range: VirtRange) -> impl Iterator<Item = &Vma> + Clone {
        let mut at = self.ptr_in(range);
        core::iter::from_fn(move || {
            let vma = &self.avl.node(at?).vma;
            let more = vma.range.end < range.end;
            at = if more { self.avl.successor(at?) } else { None };
            at = at.filter(|&next| self.avl.node(next).vma.range.start < range.end);
            Some(vma)
        })
    }

    /// Every mapping in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = &Vma> {
        let mut at = self.avl.root.map(|root| self.avl.leftmost(root));
        core::iter::from_fn(move || {
            let vma = &self.avl.node(at?).vma;
            at = self.avl.successor(at?);
            Some(vma)
        })
    }

    /// Inserts a mapping; returns it if it is empty or overlaps another.
    pub fn insert(&mut self, vma: VmaBox) -> Result<(), VmaBox> {
        let range = vma.range;
        let (mut parent, mut before, mut after) = (None, None, None);
        let mut at = self.avl.root;
        while let Some(here) = at {
            parent = at;
            if range.start < self.avl.node(here).vma.range.start {
                after = at;
                at = self.avl.left(here);
            } else {
                before = at;
                at = self.avl.right(here);
            }
        }
        let clear_below = before.is_none_or(|at| self.avl.node(at).vma.range.end <= range.start);
        let clear_above = after.is_none_or(|at| range.end <= self.avl.node(at).vma.range.start);
        if !clear_below || !clear_above || range.is_empty() {
            return Err(vma);
        }
        let new = vma.into_ptr();
        self.avl.attach(new, parent, parent.is_some() && after == parent);
        self.count += 1;
        self.note_change(new);
        self.set_gap(new, before);
        if let Some(after) = after {
            self.set_gap(after, Some(new));
        }
        // The successor of a new leaf is its ancestor.
        self.avl.repair_upwards(new, after);
        Ok(())
    }

    /// Makes the upper part of a mapping, from `border` on, one of its own. `upper` is memory for it.
    fn split_at(&mut self, at: Ptr, border: VirtAddr, mut upper: VmaBox) {
        let whole = self.avl.node(at).vma.range;
        let lower = VirtRange::new(whole.start, border);
        let attributes = self.avl.node(at).vma.attributes.again(lower.pages());
        *upper = Vma::new(VirtRange::new(border, whole.end), attributes);
        let new = upper.into_ptr();
        self.avl.node_mut(at).vma.set_range(lower);
        match self.avl.right(at) {
            None => self.avl.attach(new, Some(at), false),
            Some(right) => self.avl.attach(new, Some(self.avl.leftmost(right)), true),
        }
        self.count += 1;
        self.note_change(at);
        self.note_change(new);
        // No other gap changes: the next mapping follows the end of the whole, as before.
        self.set_gap(new, Some(at));
        self.avl.repair_upwards(new, None);
    }

    /// Takes `range`, at one end of the mapping at `at`, out of it, and makes it the mapping of `node`.
    fn cut_off(&mut self, at: Ptr, range: VirtRange, node: &mut VmaBox) {
        let whole = self.avl.node(at).vma.range;
        let before = VirtRange::new(whole.start, range.start);
        **node = Vma::new(range, self.avl.node(at).vma.attributes.again(before.pages()));
        let rest = if before.is_empty() { VirtRange::new(range.end, whole.end) } else { before };
        self.set_range(at, rest);
    }

    /// Gives a mapping another range, which lies between its neighbours.
    fn set_range(&mut self, at: Ptr, range: VirtRange) {
        let old = self.avl.node(at).vma.range;
        self.avl.node_mut(at).vma.set_range(range);
        self.note_change(at);
        if old.start != range.start {
            self.set_gap(at, self.avl.predecessor(at));
            self.avl.repair_upwards(at, None);
        }
        if old.end != range.end
            && let Some(after) = self.avl.successor(at)
        {
            self.set_gap(after, Some(at));
            self.avl.repair_upwards(after, None);
        }
    }

    /// Removes the mapping `next`, which begins where the one at `at` ends, and extends that one over it.
    fn absorb(&mut self, at: Ptr, next: Ptr) -> VmaBox {
        let end = self.avl.node(next).vma.range.end;
        // The gap of the mapping behind is counted from the same end as before.
        self.avl.remove(next, None);
        self.count -= 1;
        let node = self.avl.node_mut(at);
        node.vma.set_range(VirtRange::new(node.vma.range.start, end));
        self.note_change(at);
        VmaBox::from_ptr(next)
    }

    /// Removes the mapping that starts at `start`.
    pub fn remove(&mut self, start: VirtAddr) -> Option<VmaBox> {
        Some(self.remove_at(self.ptr_at(start)?))
    }

    fn remove_at(&mut self, at: Ptr) -> VmaBox {
        let before = self.avl.predecessor(at);
        let after = self.avl.successor(at);
        if let Some(after) = after {
            self.set_gap(after, before);
        }
        if self.avl.right(at).is_none() {
            // The successor is an ancestor.
            self.avl.remove(at, after);
        } else {
            self.avl.remove(at, None);
            if let Some(after) = after {
                self.avl.repair_upwards(after, None);
            }
        }
        self.count -= 1;
        VmaBox::from_ptr(at)
    }

    /// Removes the lowest mapping.
    pub fn pop_first(&mut self) -> Option<VmaBox> {
        let first = self.avl.leftmost(self.avl.root?);
        self.remove(self.avl.node(first).vma.range.start)
    }

    /// Gives the mapping at `start` another range. `false` unless that lies between its neighbours.
    pub fn resize(&mut self, start: VirtAddr, range: VirtRange) -> bool {
        let Some(at) = self.ptr_at(start) else { return false };
        let (before, after) = (self.avl.predecessor(at), self.avl.successor(at));
        let clear_below = before.is_none_or(|at| self.avl.node(at).vma.range.end <= range.start);
        let clear_above = after.is_none_or(|at| range.end <= self.avl.node(at).vma.range.start);
        if range.is_empty() || !clear_below || !clear_above {
            return false;
        }
        self.set_range(at, range);
        true
    }

    /// Changes attributes of the mapping that starts at `start`, and returns what `change` returns.
    pub fn modify<R>(&mut self, start: VirtAddr, change: impl FnOnce(&mut VmaAttributes) -> R) -> Option<R> {
        let at = self.ptr_at(start)?;
        let guarded = self.avl.node(at).vma.guarded_start();
        let result = change(&mut self.avl.node_mut(at).vma.attributes);
        if guarded != self.avl.node(at).vma.guarded_start() {
            self.set_gap(at, self.avl.predecessor(at));
            self.avl.repair_upwards(at, None);
        }
        Some(result)
    }

    fn ptr_from(&self, addr: VirtAddr) -> Option<Ptr> {
        let (mut at, mut best) = (self.avl.root, None);
        while let Some(here) = at {
            let node = self.avl.node(here);
            if node.vma.range.end > addr {
                best = at;
                at = if node.vma.range.start <= addr { None } else { node.left() };
            } else {
                at = node.right();
            }
        }
        best
    }

    fn ptr_before(&self, addr: VirtAddr) -> Option<Ptr> {
        let (mut at, mut best) = (self.avl.root, None);
        while let Some(here) = at {
            let node = self.avl.node(here);
            if node.vma.range.start < addr {
                best = at;
                at = node.right();
            } else {
                at = node.left();
            }
        }
        best
    }

    fn ptr_at(&self, start: VirtAddr) -> Option<Ptr> {
        self.ptr_from(start).filter(|&at| self.avl.node(at).vma.range.start == start)
    }
}

#[cfg(test)]
pub(crate) mod tests;
