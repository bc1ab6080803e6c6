//! Kinds of accesses, and whether a mapping or a leaf allows them, the same on every architecture.
#![forbid(unsafe_code)]

use super::{Entry, EntryFlags, Protection};

/// The kind of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Load.
    Read,
    /// Store.
    Write,
    /// Fetch an instruction.
    Exec,
}

impl Access {
    /// Whether a mapping allows the access. A right to write or execute includes reading, as in hardware.
    pub(crate) fn is_allowed(self, protection: Protection) -> bool {
        match self {
            Self::Read => protection != Protection::NONE,
            Self::Write => protection.contains(Protection::WRITE),
            Self::Exec => protection.contains(Protection::EXEC),
        }
    }

    /// Whether a present leaf allows the access.
    pub(crate) fn is_good_for(self, leaf: Entry) -> bool {
        match self {
            Self::Read => leaf.has(EntryFlags::USER),
            Self::Write => leaf.has(EntryFlags::USER | EntryFlags::WRITE),
            Self::Exec => leaf.has(EntryFlags::USER) && leaf.allows_fetch(),
        }
    }
}
