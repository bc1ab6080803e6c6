//! The tree's own check of its invariants.

use core::fmt;

use super::VmaTree;

/// Which invariant of the tree is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TreeFault {
    /// T4: order, emptiness or overlap.
    Order,
    /// T5: a parent link or the count.
    Links,
    /// T6: a height or the balance.
    Balance,
    /// T7: a gap or the largest gap of a subtree.
    Gaps,
}

impl fmt::Display for TreeFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Order => "mappings out of order, empty or overlapping",
            Self::Links => "a link or the count of the mapping tree is wrong",
            Self::Balance => "the mapping tree is out of balance",
            Self::Gaps => "a gap in the mapping tree is wrong",
        })
    }
}

impl VmaTree {
    /// Checks T4 to T7.
    ///
    /// # Errors
    /// The first broken one.
    pub fn validate(&self) -> Result<(), TreeFault> {
        if self.avl.root.is_some_and(|root| self.avl.node(root).links.parent.is_some()) {
            return Err(TreeFault::Links);
        }
        let (mut at, mut seen, mut end) = (self.avl.root.map(|root| self.avl.leftmost(root)), 0, 0);
        while let Some(here) = at {
            let node = self.avl.node(here);
            for child in [node.left(), node.right()].into_iter().flatten() {
                if self.avl.node(child).links.parent != at {
                    return Err(TreeFault::Links);
                }
            }
            let (start, stop) = (node.vma.range.start.0, node.vma.range.end.0);
            if start < end || stop <= start {
                return Err(TreeFault::Order);
            }
            let (left, right) = (self.avl.height(node.left()), self.avl.height(node.right()));
            if left.abs_diff(right) > 1 || node.links.height != 1 + left.max(right) {
                return Err(TreeFault::Balance);
            }
            let largest = node.gap.max(self.max_gap(node.left())).max(self.max_gap(node.right()));
            if node.gap != node.vma.guarded_start().0.saturating_sub(end) || node.max_gap != largest {
                return Err(TreeFault::Gaps);
            }
            (seen, end) = (seen + 1, stop);
            if seen > self.count {
                return Err(TreeFault::Links);
            }
            at = self.avl.successor(here);
        }
        if seen == self.count { Ok(()) } else { Err(TreeFault::Links) }
    }
}
