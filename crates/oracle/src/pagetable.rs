//! Model of a page table: a map from pages to leaves.

mod drive;
mod ops;

pub use drive::TableLockstep;
pub use ops::{Rights, TableOp, draw_tables};

use std::collections::BTreeMap;

use quire::addr::{Frame, PageSize};
use quire::error::MapError;

/// Pages (of 4 KiB) in the user half of a 4-level table.
pub const USER_PAGES: u64 = 1 << 35;

/// A leaf of a page table; `F` is the caller's type of its flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaf<F> {
    /// The first frame that it maps.
    pub frame: Frame,
    /// Its extent.
    pub size: PageSize,
    /// Its flags.
    pub flags: F,
}

/// A page table as a map from the first page of each leaf to the leaf.
#[derive(Clone, Debug)]
pub struct TableModel<F> {
    leaves: BTreeMap<u64, Leaf<F>>,
    user_pages: u64,
}

impl<F: Copy + PartialEq> TableModel<F> {
    /// An empty table; `user_pages` is the number of 4 KiB pages that can be named.
    pub fn new(user_pages: u64) -> Self {
        Self { leaves: BTreeMap::new(), user_pages }
    }

    /// The leaves with their first pages, in order.
    pub fn leaves(&self) -> impl Iterator<Item = (u64, Leaf<F>)> + '_ {
        self.leaves.iter().map(|(&page, &leaf)| (page, leaf))
    }

    /// The leaf that holds `page`, with its first page.
    pub fn leaf_at(&self, page: u64) -> Option<(u64, Leaf<F>)> {
        let (&first, &leaf) = self.leaves.range(..=page).next_back()?;
        (page < first + leaf.size.frames()).then_some((first, leaf))
    }

    /// The frame and flags that an access to `page` reaches.
    pub fn translate(&self, page: u64) -> Option<(Frame, F)> {
        let (first, leaf) = self.leaf_at(page)?;
        Some((leaf.frame.add(page - first), leaf.flags))
    }

    /// Whether any page of `start..start + count` is mapped.
    pub fn any_in(&self, start: u64, count: u64) -> bool {
        let last = self.leaves.range(..start + count).next_back();
        last.is_some_and(|(&first, leaf)| first + leaf.size.frames() > start)
    }

    /// Maps `count` leaves from `page` on, to consecutive frames.
    ///
    /// # Errors
    /// [`MapError::Unaligned`], [`MapError::BadAddress`], [`MapError::Occupied`]; nothing has changed then.
    pub fn map(&mut self, page: u64, leaf: Leaf<F>, count: u64) -> Result<(), MapError> {
        let size = leaf.size.frames();
        if !page.is_multiple_of(size) || !leaf.frame.0.is_multiple_of(size) {
            return Err(MapError::Unaligned);
        }
        if page.checked_add(count * size).is_none_or(|end| end > self.user_pages) {
            return Err(MapError::BadAddress);
        }
        if self.any_in(page, count * size) {
            return Err(MapError::Occupied);
        }
        for n in 0..count {
            self.leaves.insert(page + n * size, Leaf { frame: leaf.frame.add(n * size), ..leaf });
        }
        Ok(())
    }

    /// Cuts the leaf that crosses `page` into leaves of the next smaller size until none crosses it.
    pub fn split_at(&mut self, page: u64) {
        while let Some((first, leaf)) = self.leaf_at(page)
            && first != page
        {
            let size = match leaf.size {
                PageSize::Size1G => PageSize::Size2M,
                PageSize::Size2M | PageSize::Size4K => PageSize::Size4K,
            };
            self.leaves.remove(&first);
            for n in 0..leaf.size.frames() / size.frames() {
                let at = n * size.frames();
                self.leaves.insert(first + at, Leaf { frame: leaf.frame.add(at), size, ..leaf });
            }
        }
    }

    /// Removes the leaves of `start..start + count`, splitting larger ones at the edges; returns them in
    /// order.
    pub fn unmap(&mut self, start: u64, count: u64) -> Vec<(u64, Leaf<F>)> {
        self.split_at(start);
        self.split_at(start + count);
        let gone: Vec<_> =
            self.leaves.range(start..start + count).map(|(&page, &leaf)| (page, leaf)).collect();
        for (page, _) in &gone {
            self.leaves.remove(page);
        }
        gone
    }

    /// Gives every leaf of `start..start + count` new flags, splitting larger leaves at the edges.
    pub fn protect(&mut self, start: u64, count: u64, change: impl Fn(F) -> F) {
        self.split_at(start);
        self.split_at(start + count);
        for (_, leaf) in self.leaves.range_mut(start..start + count) {
            leaf.flags = change(leaf.flags);
        }
    }
}
