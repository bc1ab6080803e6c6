//! The links of an AVL tree inside nodes that the caller owns. The tree never allocates.
//!
//! Its height stays below `1.44 log2(n)`, which bounds every walk without a colour protocol. A node carries a
//! sum of its subtree, whose type the node chooses. The trees built on this one choose the order.
//!
//! # Invariants
//!
//! A1. Every node reachable from the root is live, and reached through this tree alone until it is unlinked.
//! A2. Every [`Ptr`] that is used with a tree names a node of it: it was read from the root or a link since
//!     the node was last known to be linked, or its owner knows that it is.
//! A3. References to nodes are made by `node` and `node_mut` only and borrow the tree, shared or exclusively,
//!     so no two that conflict exist at once.

use core::fmt;
use core::ptr::NonNull;

/// A pointer to a node of one tree (A2).
pub struct Ptr<N>(pub(crate) NonNull<N>);

/// A node's place in a tree.
#[derive(Debug)]
pub struct Links<N> {
    pub(crate) parent: Option<Ptr<N>>,
    pub(crate) left: Option<Ptr<N>>,
    pub(crate) right: Option<Ptr<N>>,
    pub(crate) height: u8,
}

/// A type that can be a node.
pub trait Node: Sized {
    /// The sum of a subtree.
    type Sum: Copy + PartialEq;
    /// The node's links.
    fn links(&self) -> &Links<Self>;
    /// The node's links, to be changed.
    fn links_mut(&mut self) -> &mut Links<Self>;
    /// The recorded sum of the node's subtree.
    fn sum(&self) -> Self::Sum;
    /// Recomputes the sum of the node's subtree from its children's.
    fn note(&mut self, left: Option<Self::Sum>, right: Option<Self::Sum>);
}

/// A tree of nodes.
#[derive(Debug)]
pub struct Avl<N> {
    pub(crate) root: Option<Ptr<N>>,
}

// SAFETY: A1: the tree owns the nodes that it reaches, so it may move to another thread if they may.
unsafe impl<N: Send> Send for Avl<N> {}
// SAFETY: A3: a shared tree gives out shared references to nodes only.
unsafe impl<N: Sync> Sync for Avl<N> {}

impl<N> Clone for Ptr<N> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<N> Copy for Ptr<N> {}

impl<N> PartialEq for Ptr<N> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<N> Eq for Ptr<N> {}

impl<N> fmt::Debug for Ptr<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<N> Links<N> {
    /// The links of a node without children.
    pub(crate) const fn leaf(parent: Option<Ptr<N>>) -> Self {
        Self { parent, left: None, right: None, height: 1 }
    }
}

impl<N> Default for Avl<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<N> Avl<N> {
    pub(crate) const fn new() -> Self {
        Self { root: None }
    }
}

impl<N: Node> Avl<N> {
    #[inline]
    pub(crate) fn node(&self, at: Ptr<N>) -> &N {
        // SAFETY: A2 says that `at` names a node of this tree, A1 that it is live, A3 that shared access to
        // the tree excludes an exclusive reference to any node.
        unsafe { at.0.as_ref() }
    }

    #[inline]
    pub(crate) fn node_mut(&mut self, at: Ptr<N>) -> &mut N {
        let mut raw = at.0;
        // SAFETY: A2, A1: `at` names a live node of this tree; A3: exclusive access to the tree excludes
        // every other reference to a node.
        unsafe { raw.as_mut() }
    }

    #[inline]
    pub(crate) fn left(&self, at: Ptr<N>) -> Option<Ptr<N>> {
        self.node(at).links().left
    }

    #[inline]
    pub(crate) fn right(&self, at: Ptr<N>) -> Option<Ptr<N>> {
        self.node(at).links().right
    }

    #[inline]
    pub(crate) fn parent(&self, at: Ptr<N>) -> Option<Ptr<N>> {
        self.node(at).links().parent
    }

    pub(crate) fn leftmost(&self, mut at: Ptr<N>) -> Ptr<N> {
        while let Some(left) = self.left(at) {
            at = left;
        }
        at
    }

    pub(crate) fn rightmost(&self, mut at: Ptr<N>) -> Ptr<N> {
        while let Some(right) = self.right(at) {
            at = right;
        }
        at
    }

    pub(crate) fn successor(&self, mut at: Ptr<N>) -> Option<Ptr<N>> {
        if let Some(right) = self.right(at) {
            return Some(self.leftmost(right));
        }
        loop {
            let parent = self.parent(at)?;
            if self.left(parent) == Some(at) {
                return Some(parent);
            }
            at = parent;
        }
    }

    pub(crate) fn predecessor(&self, mut at: Ptr<N>) -> Option<Ptr<N>> {
        if let Some(left) = self.left(at) {
            return Some(self.rightmost(left));
        }
        loop {
            let parent = self.parent(at)?;
            if self.right(parent) == Some(at) {
                return Some(parent);
            }
            at = parent;
        }
    }

    pub(crate) fn height(&self, at: Option<Ptr<N>>) -> u8 {
        at.map_or(0, |at| self.node(at).links().height)
    }

    pub(crate) fn sum(&self, at: Option<Ptr<N>>) -> Option<N::Sum> {
        at.map(|at| self.node(at).sum())
    }

    /// Inserts a node that is in no tree as a missing child of `parent`. The caller repairs upwards from it.
    pub(crate) fn attach(&mut self, new: Ptr<N>, parent: Option<Ptr<N>>, left: bool) {
        *self.node_mut(new).links_mut() = Links::leaf(parent);
        match parent {
            None => self.root = Some(new),
            Some(parent) if left => self.node_mut(parent).links_mut().left = Some(new),
            Some(parent) => self.node_mut(parent).links_mut().right = Some(new),
        }
    }

    /// Unlinks a node, and repairs the tree. `until` may name an ancestor that changed besides, if the node
    /// has no right child.
    pub(crate) fn remove(&mut self, at: Ptr<N>, until: Option<Ptr<N>>) {
        let (parent, left, right) = (self.parent(at), self.left(at), self.right(at));
        let (Some(left), Some(right)) = (left, right) else {
            self.replace_child(parent, at, left.or(right));
            if let Some(parent) = parent {
                self.repair_upwards(parent, until);
            }
            return;
        };
        // Two children: the successor, which has no left child, replaces the node.
        let heir = self.leftmost(right);
        let heir_parent = self.parent(heir);
        let lowest = if heir == right {
            heir
        } else {
            let orphan = self.right(heir);
            self.replace_child(heir_parent, heir, orphan);
            self.node_mut(heir).links_mut().right = Some(right);
            self.node_mut(right).links_mut().parent = Some(heir);
            heir_parent.unwrap_or(heir)
        };
        self.node_mut(heir).links_mut().left = Some(left);
        self.node_mut(left).links_mut().parent = Some(heir);
        self.replace_child(parent, at, Some(heir));
        self.repair_upwards(lowest, None);
        // What the heir recorded was true of its old place, so the way up may have ended at it or below.
        self.repair_upwards(heir, None);
    }

    /// Replaces the child `old` of `parent`, or the root, by `new`.
    fn replace_child(&mut self, parent: Option<Ptr<N>>, old: Ptr<N>, new: Option<Ptr<N>>) {
        match parent {
            None => self.root = new,
            Some(parent) => {
                let links = self.node_mut(parent).links_mut();
                if links.left == Some(old) {
                    links.left = new;
                } else {
                    links.right = new;
                }
            }
        }
        if let Some(new) = new {
            self.node_mut(new).links_mut().parent = parent;
        }
    }

    /// Restores heights, balance and sums of `at`, whose own may be wrong, of its parent, of all nodes up to
    /// its ancestor `until`, if one is named, and further upwards as far as they change.
    pub(crate) fn repair_upwards(&mut self, at: Ptr<N>, mut until: Option<Ptr<N>>) {
        let (mut next, mut first) = (Some(at), true);
        while let Some(at) = next {
            if until == Some(at) {
                until = None;
            }
            let (top, changed) = self.repair(at);
            next = if changed || first || until.is_some() { self.parent(top) } else { None };
            first = false;
        }
    }

    /// Restores one subtree. Returns its top, and whether its height or sum is another than before.
    fn repair(&mut self, at: Ptr<N>) -> (Ptr<N>, bool) {
        let before = (self.height(Some(at)), self.node(at).sum());
        let top = self.rebalance(at);
        (top, before != (self.height(Some(top)), self.node(top).sum()))
    }

    fn refresh(&mut self, at: Ptr<N>) {
        let (left, right) = (self.left(at), self.right(at));
        let height = 1 + self.height(left).max(self.height(right));
        let (below_left, below_right) = (self.sum(left), self.sum(right));
        let node = self.node_mut(at);
        node.links_mut().height = height;
        node.note(below_left, below_right);
    }

    /// Makes the children's heights differ by at most one, from at most two, and records height and sum.
    /// Returns the subtree's top.
    fn rebalance(&mut self, at: Ptr<N>) -> Ptr<N> {
        let (left, right) = (self.left(at), self.right(at));
        let (left_height, right_height) = (self.height(left), self.height(right));
        match (left, right) {
            (Some(left), _) if left_height > right_height + 1 => {
                if self.height(self.right(left)) > self.height(self.left(left)) {
                    self.rotate_left(left);
                }
                self.rotate_right(at)
            }
            (_, Some(right)) if right_height > left_height + 1 => {
                if self.height(self.left(right)) > self.height(self.right(right)) {
                    self.rotate_right(right);
                }
                self.rotate_left(at)
            }
            _ => {
                let sums = (self.sum(left), self.sum(right));
                let node = self.node_mut(at);
                node.links_mut().height = 1 + left_height.max(right_height);
                node.note(sums.0, sums.1);
                at
            }
        }
    }

    fn rotate_left(&mut self, at: Ptr<N>) -> Ptr<N> {
        let Some(top) = self.right(at) else { return at };
        let moved = self.left(top);
        self.replace_child(self.parent(at), at, Some(top));
        self.node_mut(at).links_mut().right = moved;
        if let Some(moved) = moved {
            self.node_mut(moved).links_mut().parent = Some(at);
        }
        self.node_mut(top).links_mut().left = Some(at);
        self.settle_rotated(at, top)
    }

    fn rotate_right(&mut self, at: Ptr<N>) -> Ptr<N> {
        let Some(top) = self.left(at) else { return at };
        let moved = self.right(top);
        self.replace_child(self.parent(at), at, Some(top));
        self.node_mut(at).links_mut().left = moved;
        if let Some(moved) = moved {
            self.node_mut(moved).links_mut().parent = Some(at);
        }
        self.node_mut(top).links_mut().right = Some(at);
        self.settle_rotated(at, top)
    }

    fn settle_rotated(&mut self, at: Ptr<N>, top: Ptr<N>) -> Ptr<N> {
        self.node_mut(at).links_mut().parent = Some(top);
        self.refresh(at);
        self.refresh(top);
        top
    }
}
