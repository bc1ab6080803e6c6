//! Bounds on an address space's resident memory, since large folios and fault-around populate neighbours.

use super::vma::{Backing, PAGE};
use super::{Family, SpaceId};

/// Bounds on the private pages that an address space has mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Bounds {
    /// Private pages that were written and must be present.
    pub anon_least: u64,
    /// Private pages that were touched: the maximum where only single pages are used.
    pub anon_touched: u64,
    /// Pages of private mappings: the maximum under any policy.
    pub anon_most: u64,
}

impl Family {
    /// Bounds on resident private pages.
    pub fn bounds(&self, id: SpaceId) -> Bounds {
        let space = self.space(id);
        let mut bounds = Bounds::default();
        for vma in space.vmas.iter().filter(|vma| vma.is_private()) {
            bounds.anon_most += vma.len() / PAGE;
            for (_, page) in space.pages.range(vma.start / PAGE..vma.end / PAGE) {
                bounds.anon_least += u64::from(page.is_kept());
                bounds.anon_touched += u64::from(vma.backing == Backing::Anonymous || page.own.is_some());
            }
        }
        bounds
    }
}
