//! Reads the pools of huge pages.

use std::fs;
use std::path::Path;

/// The pages of one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pool {
    pub(crate) all: u64,
    /// Free pages that no mapping has reserved.
    pub(crate) free: u64,
}

impl Pool {
    /// Those of the pool with this directory; `None` if there is none.
    pub(crate) fn read(pool: &Path) -> Option<Self> {
        let number = |name: &str| fs::read_to_string(pool.join(name)).ok()?.trim().parse::<u64>().ok();
        let (all, free) = (number("nr_hugepages")?, number("free_hugepages")?);
        Some(Self { all, free: free.saturating_sub(number("resv_hugepages").unwrap_or(0)) })
    }
}
