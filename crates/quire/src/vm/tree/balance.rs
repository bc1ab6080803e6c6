//! Links, rotations and the repair of heights and gaps on the way up.

use super::VmaTree;
use super::node::Ptr;

impl VmaTree {
    pub(super) fn leftmost(&self, mut at: Ptr) -> Ptr {
        while let Some(left) = self.node(at).left {
            at = left;
        }
        at
    }

    pub(super) fn rightmost(&self, mut at: Ptr) -> Ptr {
        while let Some(right) = self.node(at).right {
            at = right;
        }
        at
    }

    pub(super) fn successor(&self, mut at: Ptr) -> Option<Ptr> {
        if let Some(right) = self.node(at).right {
            return Some(self.leftmost(right));
        }
        loop {
            let parent = self.node(at).parent?;
            if self.node(parent).left == Some(at) {
                return Some(parent);
            }
            at = parent;
        }
    }

    pub(super) fn predecessor(&self, mut at: Ptr) -> Option<Ptr> {
        if let Some(left) = self.node(at).left {
            return Some(self.rightmost(left));
        }
        loop {
            let parent = self.node(at).parent?;
            if self.node(parent).right == Some(at) {
                return Some(parent);
            }
            at = parent;
        }
    }

    /// Recomputes a node's own gap from its predecessor.
    pub(super) fn set_gap(&mut self, at: Ptr, before: Option<Ptr>) {
        let floor = before.map_or(0, |before| self.node(before).vma.range.end.0);
        let node = self.node_mut(at);
        node.gap = node.vma.guarded_start().0.saturating_sub(floor);
    }

    pub(super) fn height(&self, at: Option<Ptr>) -> u8 {
        at.map_or(0, |at| self.node(at).height)
    }

    pub(super) fn max_gap(&self, at: Option<Ptr>) -> u64 {
        at.map_or(0, |at| self.node(at).max_gap)
    }

    /// Takes a node's links out of the tree. Returns the lowest node whose subtree changed.
    pub(super) fn unlink(&mut self, at: Ptr) -> Option<Ptr> {
        let (parent, left, right) = {
            let node = self.node(at);
            (node.parent, node.left, node.right)
        };
        let (Some(left), Some(right)) = (left, right) else {
            let child = left.or(right);
            self.replace_child(parent, at, child);
            return child.or(parent);
        };
        // Two children: the successor, which has no left child, takes the node's place.
        let heir = self.leftmost(right);
        let heir_parent = self.node(heir).parent;
        let lowest = if heir == right {
            heir
        } else {
            let orphan = self.node(heir).right;
            self.replace_child(heir_parent, heir, orphan);
            self.node_mut(heir).right = Some(right);
            self.node_mut(right).parent = Some(heir);
            heir_parent.unwrap_or(heir)
        };
        self.node_mut(heir).left = Some(left);
        self.node_mut(left).parent = Some(heir);
        self.replace_child(parent, at, Some(heir));
        Some(lowest)
    }

    /// Puts `new` where `old` hangs: below `parent`, or at the root.
    fn replace_child(&mut self, parent: Option<Ptr>, old: Ptr, new: Option<Ptr>) {
        match parent {
            None => self.root = new,
            Some(parent) => {
                let node = self.node_mut(parent);
                if node.left == Some(old) {
                    node.left = new;
                } else {
                    node.right = new;
                }
            }
        }
        if let Some(new) = new {
            self.node_mut(new).parent = parent;
        }
    }

    /// Restores T6 and the `max_gap` half of T7 from `at` to the root.
    pub(super) fn repair_upwards(&mut self, at: Ptr) {
        let mut next = Some(at);
        while let Some(at) = next {
            let top = self.rebalance(at);
            self.refresh(top);
            next = self.node(top).parent;
        }
    }

    fn refresh(&mut self, at: Ptr) {
        let (left, right) = (self.node(at).left, self.node(at).right);
        let height = 1 + self.height(left).max(self.height(right));
        let below = self.max_gap(left).max(self.max_gap(right));
        let node = self.node_mut(at);
        node.height = height;
        node.max_gap = node.gap.max(below);
    }

    /// Makes the children's heights differ by at most one; they differ by at most two. Returns the subtree's top.
    fn rebalance(&mut self, at: Ptr) -> Ptr {
        let (left, right) = (self.node(at).left, self.node(at).right);
        match (left, right) {
            (Some(left), _) if self.height(Some(left)) > self.height(right) + 1 => {
                if self.height(self.node(left).right) > self.height(self.node(left).left) {
                    self.rotate_left(left);
                }
                self.rotate_right(at)
            }
            (_, Some(right)) if self.height(Some(right)) > self.height(left) + 1 => {
                if self.height(self.node(right).left) > self.height(self.node(right).right) {
                    self.rotate_right(right);
                }
                self.rotate_left(at)
            }
            _ => at,
        }
    }

    fn rotate_left(&mut self, at: Ptr) -> Ptr {
        let Some(top) = self.node(at).right else { return at };
        let (parent, moved) = (self.node(at).parent, self.node(top).left);
        self.replace_child(parent, at, Some(top));
        self.node_mut(at).right = moved;
        if let Some(moved) = moved {
            self.node_mut(moved).parent = Some(at);
        }
        self.node_mut(top).left = Some(at);
        self.node_mut(at).parent = Some(top);
        self.refresh(at);
        self.refresh(top);
        top
    }

    fn rotate_right(&mut self, at: Ptr) -> Ptr {
        let Some(top) = self.node(at).left else { return at };
        let (parent, moved) = (self.node(at).parent, self.node(top).right);
        self.replace_child(parent, at, Some(top));
        self.node_mut(at).left = moved;
        if let Some(moved) = moved {
            self.node_mut(moved).parent = Some(at);
        }
        self.node_mut(top).right = Some(at);
        self.node_mut(at).parent = Some(top);
        self.refresh(at);
        self.refresh(top);
        top
    }
}
