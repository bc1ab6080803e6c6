//! The verbs that stand for a recorded call.

use std::ops::Range;

use hosted::Hosted;
use quire::addr::VirtAddr;
use quire::arch::Protection;
use quire::error::MmError;
use quire::vm::{Advice, Backing, File, MapRequest, Mm, Placement, Remap, Sharing};

use super::pages::PageSet;

pub(super) const PAGE: u64 = 4096;

/// A new mapping's contents and rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) addr: u64,
    pub(super) len: u64,
    pub(super) prot: Protection,
    pub(super) placement: Placement,
    pub(super) shared: bool,
    /// The file's number, from 0, and its first page; `None` for anonymous memory.
    pub(super) file: Option<(u64, u64)>,
    pub(super) grows_down: bool,
    /// `MAP_STACK`, which changes nothing but its name.
    pub(super) thread_stack: bool,
    pub(super) populate: bool,
    pub(super) locked: bool,
    pub(super) noreserve: bool,
}

/// One verb with its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Mmap(Mapping),
    Munmap {
        addr: u64,
        len: u64,
    },
    Mprotect {
        addr: u64,
        len: u64,
        prot: Protection,
    },
    Mremap {
        addr: u64,
        old: u64,
        new: u64,
        to: Remap,
    },
    Madvise {
        addr: u64,
        len: u64,
        advice: Advice,
    },
    /// Moves the end of the heap.
    Brk {
        from: u64,
        to: u64,
    },
    Mlock {
        addr: u64,
        len: u64,
        on_fault: bool,
    },
    Munlock {
        addr: u64,
        len: u64,
    },
    Mlockall {
        current: bool,
        future: bool,
        on_fault: bool,
    },
    Munlockall,
}

impl Verb {
    /// The start and length of the range that must be mapped already.
    pub(super) const fn range(&self) -> Option<(u64, u64)> {
        match *self {
            Self::Munmap { addr, len }
            | Self::Mprotect { addr, len, .. }
            | Self::Madvise { addr, len, .. }
            | Self::Mlock { addr, len, .. }
            | Self::Munlock { addr, len }
            | Self::Mremap { addr, old: len, .. } => Some((addr, len)),
            Self::Mmap(_) | Self::Brk { .. } | Self::Mlockall { .. } | Self::Munlockall => None,
        }
    }

    /// Whether it may free memory.
    pub(super) const fn may_release(&self) -> bool {
        match self {
            Self::Mmap(_) | Self::Munmap { .. } | Self::Mremap { .. } => true,
            Self::Madvise { advice, .. } => matches!(advice, Advice::DontNeed | Advice::Free),
            Self::Brk { from, to } => *to < *from,
            _ => false,
        }
    }

    /// Calls the verb on an address space. `files` are the handles by number. Returns the address for verbs
    /// that have one, else 0.
    ///
    /// # Errors
    /// As the verb.
    pub(super) fn run(&self, mm: &Mm<'_, Hosted>, files: &[File<'_, Hosted>]) -> Result<u64, MmError> {
        let at = VirtAddr;
        match *self {
            Self::Mmap(ref mapping) => mm.mmap(&mapping.request(files)?).map(|addr| addr.0),
            Self::Munmap { addr, len } => mm.munmap(at(addr), len).map(|()| 0),
            Self::Mprotect { addr, len, prot } => mm.mprotect(at(addr), len, prot).map(|()| 0),
            Self::Mremap { addr, old, new, to } => mm.mremap(at(addr), old, new, to).map(|addr| addr.0),
            Self::Madvise { addr, len, advice } => mm.madvise(at(addr), len, advice).map(|()| 0),
            Self::Brk { to, .. } => Ok(mm.brk(at(to)).0),
            Self::Mlock { addr, len, on_fault } => mm.mlock(at(addr), len, on_fault).map(|()| 0),
            Self::Munlock { addr, len } => mm.munlock(at(addr), len).map(|()| 0),
            Self::Mlockall { current, future, on_fault } => {
                mm.mlockall(current, future, on_fault).map(|()| 0)
            }
            Self::Munlockall => mm.munlockall().map(|()| 0),
        }
    }

    /// Changes a set of the address space's pages as the successful verb does: pages that lose their contents
    /// leave it, pages that move do so in it.
    pub(super) fn apply_to(&self, pages: &mut PageSet) {
        let [first, then] = self.empties();
        pages.remove_range(first.start, first.end);
        if let (Some(from), Self::Mremap { to: Remap::Fixed(to) | Remap::FixedDontUnmap(to), .. }) =
            (self.moves(), *self)
        {
            pages.move_range(from.start, from.end, to.0 / PAGE);
        }
        pages.remove_range(then.start, then.end);
    }

    /// The pages that the successful verb takes the contents from, in this order; those that it moves last.
    pub(super) fn empties(&self) -> [Range<u64>; 2] {
        match *self {
            Self::Mmap(Mapping { addr, len, .. })
            | Self::Munmap { addr, len }
            | Self::Madvise { addr, len, advice: Advice::DontNeed } => [pages(addr, len), 0..0],
            Self::Brk { from, to } if to < from => [to.div_ceil(PAGE)..from.div_ceil(PAGE), 0..0],
            Self::Mremap { addr, old, new, to: Remap::Fixed(to) | Remap::FixedDontUnmap(to) } => {
                [pages(to.0, new), pages(addr, old)]
            }
            Self::Mremap { addr, old, new, .. } if new < old => {
                [pages(addr, new).end..pages(addr, old).end, 0..0]
            }
            _ => [0..0, 0..0],
        }
    }

    /// The pages that the successful verb moves elsewhere.
    pub(super) fn moves(&self) -> Option<Range<u64>> {
        match *self {
            Self::Mremap { addr, old, new, to: Remap::Fixed(_) | Remap::FixedDontUnmap(_) } => {
                Some(pages(addr, old.min(new)))
            }
            _ => None,
        }
    }
}

/// The pages of a range.
fn pages(addr: u64, len: u64) -> Range<u64> {
    addr / PAGE..addr.saturating_add(len).div_ceil(PAGE)
}

impl Mapping {
    fn request<'f>(&self, files: &'f [File<'_, Hosted>]) -> Result<MapRequest<'f>, MmError> {
        let backing = match self.file {
            Some((number, page_offset)) => {
                // The survey has numbered every file, so the trace has changed since.
                let file = files.get(number as usize).ok_or(MmError::Access)?;
                Backing::File { file, page_offset }
            }
            None => Backing::Anonymous,
        };
        Ok(MapRequest {
            addr: VirtAddr(self.addr),
            len: self.len,
            prot: self.prot,
            placement: self.placement,
            sharing: if self.shared { Sharing::Shared } else { Sharing::Private },
            backing,
            grows_down: self.grows_down,
            populate: self.populate,
            locked: self.locked,
            noreserve: self.noreserve,
            ..MapRequest::default()
        })
    }
}
