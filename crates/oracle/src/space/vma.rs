//! A mapping of the model.

/// Bytes in a page.
pub const PAGE: u64 = 4096;

/// The accesses that a mapping allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Prot {
    /// `PROT_NONE`.
    None,
    /// `PROT_READ`.
    R,
    /// `PROT_WRITE` alone; on x86-64 it reads as well.
    W,
    /// `PROT_READ | PROT_WRITE`.
    Rw,
    /// `PROT_READ | PROT_EXEC`.
    Rx,
    /// `PROT_READ | PROT_WRITE | PROT_EXEC`.
    Rwx,
}

impl Prot {
    /// Every protection.
    pub const ALL: [Self; 6] = [Self::None, Self::R, Self::W, Self::Rw, Self::Rx, Self::Rwx];

    /// Whether a load is allowed. Hardware has no mapping that can be written and not read.
    pub fn reads(self) -> bool {
        self != Self::None
    }

    /// Whether `PROT_READ` was given, which a populating read requires.
    pub fn names_read(self) -> bool {
        self.reads() && self != Self::W
    }

    /// Whether a store is allowed.
    pub fn writes(self) -> bool {
        matches!(self, Self::W | Self::Rw | Self::Rwx)
    }

    /// Whether an instruction fetch is allowed.
    pub fn executes(self) -> bool {
        matches!(self, Self::Rx | Self::Rwx)
    }
}

/// The backing of a mapping's pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum Backing {
    /// Zeroes, private to the address space.
    Anonymous,
    /// A file, by its number.
    File(u64),
    /// Memory shared with other mappings of the same number, made by a shared anonymous mapping.
    Shared(u64),
}

/// Whether a mapping's pages are locked in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Locked {
    /// Not locked.
    No,
    /// Locked, and populated when it was locked (`VM_LOCKED`).
    Now,
    /// Locked as they come in (`VM_LOCKED | VM_LOCKONFAULT`).
    OnFault,
}

/// The advice about large folios.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Huge {
    /// Nothing.
    Default,
    /// `MADV_HUGEPAGE`.
    Yes,
    /// `MADV_NOHUGEPAGE`.
    No,
}

/// A run of pages with one set of attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vma {
    /// The first byte.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
    /// The allowed accesses.
    pub prot: Prot,
    /// Whether stores reach the backing.
    pub shared: bool,
    /// The backing of its pages.
    pub backing: Backing,
    /// The page of the backing at `start`; zero, without meaning, for anonymous memory.
    pub page_offset: u64,
    /// Whether a fault below `start` extends it downwards.
    pub grows_down: bool,
    /// Whether its pages are locked.
    pub locked: Locked,
    /// The advice about large folios.
    pub huge: Huge,
    /// Whether it is private, of a file, and allowed stores at some time (`VM_ACCOUNT`).
    pub accounted: bool,
}

impl Vma {
    /// Bytes.
    pub fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Whether it holds no byte; a mapping in a list never is.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The page of the backing that is mapped at `addr`.
    pub fn backing_page(&self, addr: u64) -> u64 {
        self.page_offset + (addr - self.start) / PAGE
    }

    /// Whether a written page becomes private to the address space.
    pub fn is_private(&self) -> bool {
        !self.shared
    }

    /// Sets the allowed accesses.
    pub(crate) fn protect(&mut self, prot: Prot) {
        self.prot = prot;
        self.accounted |= prot.writes() && self.is_private() && self.backing != Backing::Anonymous;
    }

    /// Cuts at `addr`, which is inside; keeps the lower part and returns the upper.
    pub(crate) fn split(&mut self, addr: u64) -> Self {
        let mut upper = *self;
        upper.start = addr;
        if self.backing != Backing::Anonymous {
            upper.page_offset = self.backing_page(addr);
        }
        self.end = addr;
        upper
    }

    /// Whether `next` starts where this ends, with the same attributes.
    pub(crate) fn continues(&self, next: &Self) -> bool {
        let offset = self.backing == Backing::Anonymous || self.backing_page(self.end) == next.page_offset;
        let moved = Self { start: next.start, end: next.end, page_offset: next.page_offset, ..*self };
        self.end == next.start && offset && moved == *next
    }
}

/// Merges mappings as far as possible, so that lists can be compared that differ only in their merges.
pub fn normalise(mut vmas: Vec<Vma>) -> Vec<Vma> {
    vmas.dedup_by(|next, last| {
        let one = last.continues(next);
        if one {
            last.end = next.end;
        }
        one
    });
    vmas
}
