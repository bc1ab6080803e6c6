//! Counters of resident memory, one slot for each CPU as long as there are enough.
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicI64, Ordering};

use crate::filemap::FileKind;
use crate::platform::Platform;
use crate::sync::Pinned;
use crate::tlb::RssChange;
use crate::vm::mapping::vma::{Backing, Vma};

/// Further CPUs share slots, which costs only speed.
const SLOTS: usize = 16;

/// One CPU's share of the counts. One CPU may count a page up and another count it down, so a share may be
/// below zero; the sum is exact.
#[derive(Default)]
#[repr(align(64))]
struct RssShare {
    anon: AtomicI64,
    file: AtomicI64,
    shmem: AtomicI64,
    huge: AtomicI64,
}

/// The kind under which a mapping's pages count, except private pages that are no huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::vm) enum Counted {
    /// Page cache.
    File,
    /// Shared anonymous memory.
    Shmem,
    /// Huge pages of a pool, private ones too.
    Huge,
}

impl From<FileKind> for Counted {
    fn from(kind: FileKind) -> Self {
        match kind {
            FileKind::Paged(_) => Self::File,
            FileKind::Shmem { .. } => Self::Shmem,
            FileKind::Huge { .. } => Self::Huge,
        }
    }
}

impl RssShare {
    fn cell(&self, counted: Counted) -> &AtomicI64 {
        match counted {
            Counted::File => &self.file,
            Counted::Shmem => &self.shmem,
            Counted::Huge => &self.huge,
        }
    }
}

#[derive(Default)]
pub(in crate::vm) struct RssCells([RssShare; SLOTS]);

/// Sums over all CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::vm) struct Resident {
    pub(in crate::vm) anon: u64,
    pub(in crate::vm) file: u64,
    pub(in crate::vm) shmem: u64,
    pub(in crate::vm) huge: u64,
}

impl Resident {
    /// Counts pages of a mapping by the rule of [`RssCells::add`].
    pub(in crate::vm) fn count(&mut self, counted: Counted, anon: bool, pages: u64) {
        let kind = match counted {
            Counted::Huge => &mut self.huge,
            _ if anon => &mut self.anon,
            Counted::File => &mut self.file,
            Counted::Shmem => &mut self.shmem,
        };
        *kind += pages;
    }

    pub(in crate::vm) fn kinds(self) -> [u64; 4] {
        [self.anon, self.file, self.shmem, self.huge]
    }
}

impl RssCells {
    fn slot<P: Platform>(&self, platform: &P) -> &RssShare {
        &self.0[Pinned::new(platform).cpu().index() % SLOTS]
    }

    #[inline]
    pub(in crate::vm) fn add_anon<P: Platform>(&self, platform: &P, pages: i64) {
        self.slot(platform).anon.fetch_add(pages, Ordering::Relaxed);
    }

    #[inline]
    pub(in crate::vm) fn add_as<P: Platform>(&self, platform: &P, counted: Counted, pages: i64) {
        self.slot(platform).cell(counted).fetch_add(pages, Ordering::Relaxed);
    }

    /// Applies what the page table counted; only the caller knows the kind of file.
    pub(in crate::vm) fn add<P: Platform>(&self, platform: &P, change: RssChange, counted: Counted) {
        let slot = self.slot(platform);
        let private = if counted == Counted::Huge { &slot.huge } else { &slot.anon };
        private.fetch_add(change.anon, Ordering::Relaxed);
        if change.file != 0 {
            slot.cell(counted).fetch_add(change.file, Ordering::Relaxed);
        }
    }

    /// The sums; exact when no task changes them.
    pub(in crate::vm) fn sum(&self) -> Resident {
        let sum = |cell: fn(&RssShare) -> &AtomicI64| {
            self.0.iter().map(|slot| cell(slot).load(Ordering::Relaxed)).sum::<i64>().max(0) as u64
        };
        Resident {
            anon: sum(|slot| &slot.anon),
            file: sum(|slot| &slot.file),
            shmem: sum(|slot| &slot.shmem),
            huge: sum(|slot| &slot.huge),
        }
    }
}

pub(in crate::vm) fn counted(vma: &Vma) -> Counted {
    match &vma.attributes.backing {
        Backing::File { file, .. } => file.node().kind().into(),
        Backing::Anonymous => Counted::File,
    }
}
