//! What a mapping knows of its handler: which one, and what it wants to hear of.
#![forbid(unsafe_code)]

/// What a handler of faults wants to be told of in a range, as a set.
///
/// Source: Linux, `Documentation/admin-guide/mm/userfaultfd.rst` (`UFFDIO_REGISTER_MODE_*`).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct UserfaultModes(u8);

impl UserfaultModes {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// Accesses where there is no page: nothing is mapped, and a file has none either.
    pub const MISSING: Self = Self(1);
    /// Accesses where a file has the page, and the address space has not mapped it.
    pub const MINOR: Self = Self(1 << 1);
    /// Stores to pages that were write-protected for the handler.
    pub const WRITE_PROTECT: Self = Self(1 << 2);

    /// Whether all of `other` are there.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// With those of `other` as well.
    #[inline]
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether there are none.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl core::ops::BitOr for UserfaultModes {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

/// Who handles the faults of a mapping, if anybody: a context by its number and the count of contexts that had it before. A
/// context that was closed leaves its mappings as they are; they name one that is not there any more.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Registration {
    pub(super) generation: u32,
    pub(super) number: u8,
    modes: UserfaultModes,
}

impl Registration {
    /// Nobody.
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
