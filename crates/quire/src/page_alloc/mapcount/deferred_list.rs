//! The list of folios that wait to be split.
#![forbid(unsafe_code)]

/// The list, as block numbers plus one, oldest first.
#[derive(Default)]
pub(in crate::page_alloc) struct DeferredSplits {
    pub(in crate::page_alloc) first: u64,
    pub(in crate::page_alloc) last: u64,
    pub(in crate::page_alloc) count: u64,
}
