//! File systems of huge pages: their limits and numbers.
#![forbid(unsafe_code)]

use super::HugeSize;
use crate::error::errno::{EINVAL, EMFILE, ENOMEM};

/// Limits of a file system, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HugeFsLimits {
    /// Pages that its files, and private mappings of them, may have or reserve together (`size=`).
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
    /// Pages that its files have or reserve, those of private mappings of them included.
    pub used: u64,
    /// Pages that the pool keeps for it beside those.
    pub kept: u64,
    /// The limit of `used`.
    pub max: u64,
}

/// Why no file system was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HugeFsError {
    /// `ENOMEM`: the pool has too few pages to keep some for it.
    NoPages,
    /// `EMFILE`: there are [`MAX_HUGE_FS`](crate::limits::MAX_HUGE_FS) already.
    TooMany,
    /// `EINVAL`: its minimum is above its maximum.
    BadLimits,
}

impl HugeFsError {
    /// The errno of mount(2) that the variant's description names.
    pub const fn errno(self) -> i32 {
        match self {
            Self::NoPages => ENOMEM,
            Self::TooMany => EMFILE,
            Self::BadLimits => EINVAL,
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Fs {
    pub(super) size: HugeSize,
    pub(super) limits: HugeFsLimits,
    pub(super) used: u64,
    /// Pages that the pool keeps reserved for it.
    pub(super) kept: u64,
    /// Its files, and its handle.
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
