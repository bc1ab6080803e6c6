//! File systems of huge pages: how many pages the files of one may have, and how many are kept for them.
#![forbid(unsafe_code)]

use super::HugeSize;

/// Limits of a file system, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HugeFsLimits {
    /// Pages that its files may have or be reserved together, those of private mappings of them counted
    /// (`size=`).
    pub max: u64,
    /// Pages that the pool keeps for it from the start (`min_size=`).
    pub min: u64,
}

impl Default for HugeFsLimits {
    fn default() -> Self {
        Self { max: u64::MAX, min: 0 }
    }
}

/// A file system's numbers, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HugeFsInfo {
    /// Pages that its files have or were reserved, private mappings of them included.
    pub used: u64,
    /// Pages that the pool keeps for it beside those.
    pub kept: u64,
    /// Pages that there may be.
    pub max: u64,
}

/// Why there is no file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HugeFsError {
    /// `ENOMEM`: the pool has too few pages to keep some for it.
    NoPages,
    /// There are [`MAX_HUGE_FS`](crate::limits::MAX_HUGE_FS) already.
    TooMany,
    /// `EINVAL`: it is to keep more than it may have.
    BadLimits,
}

/// One of them. Under the lock of all.
#[derive(Clone, Copy)]
pub(super) struct Fs {
    pub(super) size: HugeSize,
    pub(super) limits: HugeFsLimits,
    pub(super) used: u64,
    /// Reserved by the pool to the file system itself.
    pub(super) kept: u64,
    /// Its handle, and its files.
    pub(super) users: u64,
}

impl Fs {
    pub(super) const NONE: Self = Self {
        size: HugeSize::Size2M,
        limits: HugeFsLimits { max: u64::MAX, min: 0 },
        used: 0,
        kept: 0,
        users: 0,
    };
}
