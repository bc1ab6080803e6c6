//! What the pools keep for the descriptors of their pages, and the pages that they gather.
#![forbid(unsafe_code)]

#[cfg(feature = "published")]
use crate::vmemmap::{PageChain, Window};

/// What the pools keep for the descriptors of their pages.
#[cfg(feature = "published")]
pub(in crate::hugetlb) struct Descriptors {
    pub(in crate::hugetlb) window: Option<Window>,
}

#[cfg(feature = "published")]
impl Descriptors {
    pub(in crate::hugetlb) const fn new() -> Self {
        Self { window: None }
    }
}

/// Pages that are gathered before anything is done to them.
#[cfg(feature = "published")]
pub(in crate::hugetlb) type Gathered = PageChain;

/// Pages that are gathered before anything is done to them: none ever.
#[cfg(not(feature = "published"))]
#[derive(Default)]
pub(in crate::hugetlb) struct Gathered;

#[cfg(not(feature = "published"))]
impl Gathered {
    pub(in crate::hugetlb) fn is_empty(&self) -> bool {
        true
    }
}
