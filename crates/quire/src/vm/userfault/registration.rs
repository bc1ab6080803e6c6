//! What a mapping knows of its handler: which one, and what it wants to hear of.
#![forbid(unsafe_code)]

use crate::flags::flag_set;

/// What a handler of faults wants to be told of in a range, as a set.
///
/// Source: Linux, `Documentation/admin-guide/mm/userfaultfd.rst` (`UFFDIO_REGISTER_MODE_*`).
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct UserfaultModes(u8);

flag_set!(UserfaultModes: MISSING, MINOR, WRITE_PROTECT);

impl UserfaultModes {
    /// Accesses where there is no page: nothing is mapped, and a file has none either.
    pub const MISSING: Self = Self(1);
    /// Accesses where a file has the page, and the address space has not mapped it.
    pub const MINOR: Self = Self(1 << 1);
    /// Stores to pages that were write-protected for the handler.
    pub const WRITE_PROTECT: Self = Self(1 << 2);
}

/// The handler of a mapping's faults, if it has one: a context by its number and the count of contexts that
/// had it before. A context that was closed leaves its mappings as they are; they name one that is not there
/// any more.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Registration {
    pub(super) generation: u32,
    pub(super) number: u8,
    modes: UserfaultModes,
}

impl Registration {
    /// No handler.
    pub const NONE: Self = Self { generation: 0, number: 0, modes: UserfaultModes::NONE };

    pub(super) const fn new(number: u8, generation: u32) -> Self {
        Self { generation, number, modes: UserfaultModes::NONE }
    }

    /// The same handler, which wants to hear of this.
    #[must_use]
    pub(super) const fn with_modes(self, modes: UserfaultModes) -> Self {
        Self { modes, ..self }
    }

    /// What the handler wants to hear of.
    #[inline]
    pub const fn modes(self) -> UserfaultModes {
        self.modes
    }

    /// Whether there is a handler.
    #[inline]
    pub const fn is_some(self) -> bool {
        !self.modes.is_empty()
    }

    /// Whether the handler wants to hear of this.
    #[inline]
    pub const fn catches(self, mode: UserfaultModes) -> bool {
        self.modes.contains(mode)
    }

    /// Whether it is the same handler.
    pub(super) const fn is_of(self, other: Self) -> bool {
        self.number == other.number && self.generation == other.generation
    }
}
