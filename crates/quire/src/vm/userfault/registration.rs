//! The handler of a mapping, and the faults for which it is registered.
#![forbid(unsafe_code)]

use crate::flags::flag_set;

/// The set of fault kinds that a handler is told of in a range (Linux: `UFFDIO_REGISTER_MODE_*`).
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

/// The handler of a mapping's faults, if it has one: the number of its context, and how many handlers had
/// that number before. Mappings keep the registration of a handler that has closed.
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

    /// The same handler, with these modes.
    #[must_use]
    pub(super) const fn with_modes(self, modes: UserfaultModes) -> Self {
        Self { modes, ..self }
    }

    /// The modes.
    #[inline]
    pub const fn modes(self) -> UserfaultModes {
        self.modes
    }

    /// Whether there is a handler.
    #[inline]
    pub const fn is_some(self) -> bool {
        !self.modes.is_empty()
    }

    /// Whether the handler is told of these faults.
    #[inline]
    pub const fn catches(self, mode: UserfaultModes) -> bool {
        self.modes.contains(mode)
    }

    /// Whether both name the same handler.
    pub(super) const fn is_of(self, other: Self) -> bool {
        self.number == other.number && self.generation == other.generation
    }
}
