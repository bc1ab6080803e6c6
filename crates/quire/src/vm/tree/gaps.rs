//! Finds the highest gap in which a mapping fits, and the gap around a range.

use super::{Ptr, VmaTree};
use crate::addr::{VirtAddr, VirtRange};

impl VmaTree {
    /// Recomputes a node's own gap from its predecessor.
    pub(super) fn set_gap(&mut self, at: Ptr, before: Option<Ptr>) {
        let floor = before.map_or(0, |before| self.avl.node(before).vma.range.end.0);
        let node = self.avl.node_mut(at);
        node.gap = node.vma.guarded_start().0.saturating_sub(floor);
    }

    pub(super) fn max_gap(&self, at: Option<Ptr>) -> u64 {
        self.avl.sum(at).unwrap_or(0)
    }

    /// A range that is no part of a larger mapping, extended to the mappings beside it, or to the ends of `user`.
    pub fn hole_around(&self, range: VirtRange, user: VirtRange) -> VirtRange {
        let below = self.find_before(range.start).map_or(user.start, |vma| vma.range.end);
        let above = self.find_from(range.end).map_or(user.end, |vma| vma.range.start);
        VirtRange::new(below, above)
    }

    /// The highest place for `len` bytes inside `window`, aligned to `align`, clear of every mapping and of
    /// the guard gap below those that grow down. `len` is a multiple of 4096 and not zero; `align` is a power
    /// of two, at least 4096.
    ///
    /// One descent of the tree. As in Linux's search, only gaps of at least `len + align - 4096` bytes count,
    /// since they surely have an aligned place.
    pub fn highest_gap(&self, window: VirtRange, len: u64, align: u64) -> Option<VirtAddr> {
        let room = len.checked_add(align - 4096)?;
        let place = |floor: u64, ceiling: u64| {
            let (floor, ceiling) = (floor.max(window.start.0), ceiling.min(window.end.0));
            (ceiling.saturating_sub(floor) >= room).then(|| VirtAddr(ceiling - len).align_down(align))
        };
        // First the gap that the window's end cuts: below the first mapping that starts at or above the end.
        let above = self.first_starting_from(window.end);
        let ceiling = above.map_or(u64::MAX, |at| self.avl.node(at).vma.guarded_start().0);
        let below = match above {
            Some(above) => self.avl.predecessor(above),
            None => self.avl.root.map(|root| self.avl.rightmost(root)),
        };
        let floor = below.map_or(0, |at| self.avl.node(at).vma.range.end.0);
        if let Some(found) = place(floor, ceiling) {
            return Some(found);
        }
        // All gaps below lie wholly in the window, except the one that its start cuts, which is tried last.
        let at = self.last_with_gap(window.end, room)?;
        let ceiling = self.avl.node(at).vma.guarded_start().0;
        place(ceiling - self.avl.node(at).gap, ceiling)
    }

    fn first_starting_from(&self, addr: VirtAddr) -> Option<Ptr> {
        let (mut at, mut best) = (self.avl.root, None);
        while let Some(here) = at {
            let node = self.avl.node(here);
            if node.vma.range.start >= addr {
                best = at;
                at = node.left();
            } else {
                at = node.right();
            }
        }
        best
    }

    /// The last mapping that starts before `limit` with at least `room` bytes free in front of it.
    fn last_with_gap(&self, limit: VirtAddr, room: u64) -> Option<Ptr> {
        let enough = |at: Option<Ptr>| self.max_gap(at) >= room;
        // Down to the limit, remembering the last node below it that has enough room, itself or to the left.
        let (mut at, mut found) = (self.avl.root.filter(|&root| enough(Some(root))), None);
        while let Some(here) = at {
            let node = self.avl.node(here);
            if node.vma.range.start < limit {
                if node.gap >= room || enough(node.left()) {
                    found = at;
                }
                at = node.right().filter(|&right| enough(Some(right)));
            } else {
                at = node.left().filter(|&left| enough(Some(left)));
            }
        }
        let found = found?;
        if self.avl.node(found).gap >= room {
            return Some(found);
        }
        let mut at = self.avl.left(found)?;
        loop {
            let node = self.avl.node(at);
            match (node.right(), node.left()) {
                (Some(right), _) if enough(Some(right)) => at = right,
                _ if node.gap >= room => return Some(at),
                (_, left) => at = left?,
            }
        }
    }
}
