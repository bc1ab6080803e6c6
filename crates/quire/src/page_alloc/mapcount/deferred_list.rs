//! The folios that wait to be split, as block numbers plus one, oldest first.
#![forbid(unsafe_code)]

#[derive(Default)]
pub(in crate::page_alloc) struct DeferredSplits {
    pub(in crate::page_alloc) first: u64,
    pub(in crate::page_alloc) last: u64,
    pub(in crate::page_alloc) count: u64,
}
