//! The pools' state for descriptors, and gathered pages.
#![forbid(unsafe_code)]

#[cfg(feature = "published")]
use crate::memmap::BootTable;
#[cfg(feature = "published")]
use crate::vmemmap::{PageChain, Window};

#[cfg(feature = "published")]
pub(in crate::hugetlb) struct Descriptors {
    /// The window, if there is one.
    pub(in crate::hugetlb) window: BootTable<Window>,
}

#[cfg(feature = "published")]
impl Descriptors {
    pub(in crate::hugetlb) const fn new() -> Self {
        Self { window: BootTable::empty() }
    }
}

/// Pages of a resize that are in no pool.
#[cfg(feature = "published")]
pub(in crate::hugetlb) type Gathered = PageChain;

/// Pages of a resize that are in no pool: always none.
#[cfg(not(feature = "published"))]
#[derive(Default)]
pub(in crate::hugetlb) struct Gathered;

#[cfg(not(feature = "published"))]
impl Gathered {
    pub(in crate::hugetlb) fn is_empty(&self) -> bool {
        true
    }
}
