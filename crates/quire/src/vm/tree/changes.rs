//! Records which mappings of files changed, so that the files can be told before the lock is released.
#![forbid(unsafe_code)]

use super::node::view_of;
use super::{NOWHERE, Ptr, VmaTree};
use crate::addr::VirtRange;
use crate::filemap::ViewPtr;
use crate::vm::mapping::vma::Vma;

impl VmaTree {
    /// Records that a mapping of a file is new or has another range. Keeps two ranges, as many as a move
    /// changes; a further one is merged into the range that it enlarges least.
    pub(super) fn note_change(&mut self, at: Ptr) {
        let vma = &self.avl.node(at).vma;
        if vma.attributes.is_anonymous() {
            return;
        }
        let range = vma.range;
        let hull = |old: VirtRange| match old.is_empty() {
            true => range,
            false => VirtRange::new(old.start.min(range.start), old.end.max(range.end)),
        };
        let cost = |old: VirtRange| hull(old).len() - old.len();
        let [first, second] = self.changed;
        let at = usize::from(cost(second) < cost(first));
        self.changed[at] = hull(self.changed[at]);
    }

    /// Whether mappings of files may be new or changed since the last [`Self::take_changed`].
    #[inline]
    pub fn has_changed(&self) -> bool {
        self.changed != [NOWHERE; 2]
    }

    /// Where mappings of files may be new or changed since the last call.
    #[inline]
    pub fn take_changed(&mut self) -> Option<[VirtRange; 2]> {
        self.has_changed().then(|| core::mem::replace(&mut self.changed, [NOWHERE; 2]))
    }

    /// Shows the mappings in these ranges, and their views.
    pub fn views_in(&self, ranges: &[VirtRange], mut show: impl FnMut(ViewPtr, &Vma)) {
        for range in ranges {
            let mut at = if range.is_empty() { None } else { self.ptr_from(range.start) };
            while let Some(here) = at.filter(|&at| self.avl.node(at).vma.range.start < range.end) {
                show(view_of(here), &self.avl.node(here).vma);
                at = self.avl.successor(here);
            }
        }
    }

    /// Every mapping with its view.
    pub fn views(&self) -> impl Iterator<Item = (ViewPtr, &Vma)> {
        let mut at = self.avl.root.map(|root| self.avl.leftmost(root));
        core::iter::from_fn(move || {
            let here = at?;
            at = self.avl.successor(here);
            Some((view_of(here), &self.avl.node(here).vma))
        })
    }
}
