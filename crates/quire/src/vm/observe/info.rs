//! What can be seen of an address space from outside: its mappings, its resident memory, and whether it is in
//! order.
#![forbid(unsafe_code)]

use core::fmt;

use crate::addr::{FrameRange, VirtRange};
use crate::arch::{EntryFlags, Protection};
use crate::filemap::FileKind;
use crate::limits::FRAME_SHIFT;
use crate::page_alloc::Origin;
use crate::pgtable::{LeafRun, TableViolation};
use crate::platform::Platform;
use crate::vm::mapping::moved::Moved;
use crate::vm::mapping::policy::{FolioOverride, HugeAdvice};
use crate::vm::mapping::vma::{Backing, Vma, VmaFlags};
use crate::vm::observe::view::Observation;
use crate::vm::space::rss::{Resident, counted};
use crate::vm::tree::TreeFault;
use crate::vm::userfault::UserfaultModes;

/// Resident pages by kind, as `/proc/PID/status` counts them (`RssAnon`, `RssFile`, `RssShmem`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rss {
    /// Private pages of 4 KiB.
    pub anon: u64,
    /// Pages of files.
    pub file: u64,
    /// Pages of shared anonymous memory.
    pub shmem: u64,
    /// Huge pages, in pages of 4 KiB (`HugetlbPages`).
    pub huge: u64,
    /// Page-table pages.
    pub page_tables: u64,
    /// Pages of mappings that are locked, resident or not.
    pub locked: u64,
}

/// A mapping as it was at some moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VmaInfo {
    /// Its addresses.
    pub range: VirtRange,
    /// What accesses may do.
    pub protection: Protection,
    /// Shared, growing down, locked, and so on.
    pub flags: VmaFlags,
    /// What `madvise` said about large folios.
    pub advice: HugeAdvice,
    /// What it says to each folio order.
    pub folios: FolioOverride,
    /// What a handler of faults is told of.
    pub handler: UserfaultModes,
    /// What kind of file is mapped and its page at the start; `None` for anonymous memory.
    pub file: Option<(FileKind, u64)>,
}

impl From<&Vma> for VmaInfo {
    fn from(vma: &Vma) -> Self {
        let file = match &vma.attributes.backing {
            Backing::Anonymous => None,
            Backing::File { file, page_offset } => Some((file.node().kind(), *page_offset)),
        };
        Self {
            range: vma.range,
            protection: vma.attributes.protection,
            flags: vma.attributes.flags,
            advice: vma.attributes.advice,
            folios: vma.attributes.folios,
            handler: vma.attributes.handler.modes(),
            file,
        }
    }
}

impl<P: Platform> Observation<'_, '_, P> {
    /// See [`Mm::vmas`](crate::vm::Mm::vmas).
    pub(in crate::vm) fn vmas(self, mut visit: impl FnMut(&VmaInfo)) {
        let space = self.space.read(self.memory.platform());
        space.tree.iter().for_each(|vma| visit(&vma.into()));
    }

    /// See [`Mm::mappings`](crate::vm::Mm::mappings).
    pub(in crate::vm) fn mappings(self) -> usize {
        self.space.read(self.memory.platform()).tree.len()
    }

    /// See [`Mm::rss`](crate::vm::Mm::rss).
    pub(in crate::vm) fn rss(self) -> Rss {
        let space = self.space.read(self.memory.platform());
        let locked = space.tree.iter().filter(|vma| vma.attributes.flags.contains(VmaFlags::LOCKED));
        let resident = self.rss.sum();
        Rss {
            anon: resident.anon,
            file: resident.file,
            shmem: resident.shmem,
            huge: resident.huge,
            page_tables: self.context.tables(),
            locked: locked.map(|vma| vma.range.pages()).sum(),
        }
    }
}

impl<P: Platform> Observation<'_, '_, P> {
    /// See [`Mm::validate`](crate::vm::Mm::validate)(crate::vm::Mm::validate).
    pub(in crate::vm) fn validate(self) -> Result<(), MmFault> {
        let space = self.space.read(self.memory.platform());
        space.tree.validate().map_err(MmFault::Tree)?;
        self.tables().validate().map_err(MmFault::Table)?;
        let mut before: Option<&Vma> = None;
        let mut found = Resident::default();
        for (view, vma) in space.tree.views() {
            if !self.body().is_shown(self.memory.platform(), view, vma) {
                return Err(MmFault::View(vma.range));
            }
            if let Some(before) = before.filter(|before| before.merges_with(vma)) {
                return Err(MmFault::NotMerged(before.range));
            }
            self.validate_leaves(vma, &mut found)?;
            before = Some(vma);
        }
        let mut all = 0;
        self.tables().runs(space.layout.user, |run| all += counted_pages(&run));
        if all != found.kinds().iter().sum() {
            return Err(MmFault::Leaf(space.layout.user));
        }
        let mut kinds = self.rss.sum().kinds().into_iter().zip(found.kinds());
        let wrong = kinds.find(|(counted, found)| counted != found);
        wrong.map_or(Ok(()), |(counted, found)| Err(MmFault::Resident { counted, found }))
    }

    /// Checks that the leaves in a mapping allow no more than it does, and counts the pages that they map.
    fn validate_leaves(self, vma: &Vma, found: &mut Resident) -> Result<(), MmFault> {
        let mut wrong = None;
        let protection = vma.attributes.protection;
        self.tables().runs(vma.range, |run| {
            let range = VirtRange::from_len(run.addr, run.count * run.size.bytes());
            let leaf = run.first;
            let allowed = vma.range.covers(range)
                && (!leaf.has(EntryFlags::WRITE) || protection.contains(Protection::WRITE))
                && leaf.has(EntryFlags::USER) == (protection != Protection::NONE)
                && leaf.allows_fetch() == protection.contains(Protection::EXEC)
                && (vma.attributes.is_private() || !leaf.has(EntryFlags::ANON))
                && self.maps_what_is_found(vma, &run);
            if !allowed {
                wrong = Some(range);
            }
            found.count(counted(vma), leaf.has(EntryFlags::ANON), counted_pages(&run));
        });
        wrong.map_or(Ok(()), |range| Err(MmFault::Leaf(range)))
    }
}

impl<P: Platform> Observation<'_, '_, P> {
    /// Whether leaves map frames that the reverse map finds there: pages of the mapping's file, or anonymous
    /// ones.
    fn maps_what_is_found(self, vma: &Vma, run: &LeafRun) -> bool {
        if run.first.has(EntryFlags::SPECIAL) {
            return true;
        }
        if run.first.has(EntryFlags::ANON) {
            return self.is_from_here(vma, run);
        }
        let Backing::File { file, .. } = &vma.attributes.backing else { return false };
        let frames = FrameRange::new(run.first.frame(), run.count * run.size.frames());
        let index = vma.file_page(run.addr).unwrap_or(0);
        if vma.attributes.huge_size().is_some() {
            return self.memory.files().holds_huge(self.memory.platform(), file.node(), index, frames);
        }
        self.memory.files().holds(self.memory.platform(), file.node(), index, frames)
    }

    /// Whether the reverse map finds anonymous frames where they are: the mapping leads there from where they
    /// come from, or it does not know.
    fn is_from_here(self, vma: &Vma, run: &LeafRun) -> bool {
        let unlike = vma.attributes.moved == Moved::UNLIKE;
        (0..run.count * run.size.frames()).all(|at| {
            let origin = self.memory.pages().frames().origin(run.first.frame().add(at));
            let here = vma.attributes.origin_of(run.addr.add(at << FRAME_SHIFT));
            let here = Origin::new(self.family, here);
            origin.is_some_and(|origin| origin.family() == here.family() && (unlike || origin == here))
        })
    }
}

/// The 4 KiB pages of a run that count as resident.
fn counted_pages(run: &LeafRun) -> u64 {
    if run.first.has(EntryFlags::SPECIAL) { 0 } else { run.count * run.size.frames() }
}

/// What [`Mm::validate`](crate::vm::Mm::validate) found broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MmFault {
    /// The tree of mappings.
    Tree(TreeFault),
    /// The page table.
    Table(TableViolation),
    /// Two neighbours that agree in everything were not merged; the first of them.
    NotMerged(VirtRange),
    /// Something is mapped in the page table where no mapping is, or with rights that the mapping does not
    /// give.
    Leaf(VirtRange),
    /// The reverse map of the file does not know the mapping as it is.
    View(VirtRange),
    /// A counter of resident memory is not what the page table maps of its kind.
    Resident {
        /// As counted: anonymous pages, pages of files, of shared anonymous memory, or huge ones.
        counted: u64,
        /// As found.
        found: u64,
    },
}

impl fmt::Display for MmFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tree(fault) => fault.fmt(f),
            Self::Table(violation) => write!(f, "the page table is broken: {violation:?}"),
            Self::NotMerged(range) => write!(f, "mapping {range:?} should be one with the next"),
            Self::Leaf(range) => write!(f, "the page table maps {range:?} against the mappings"),
            Self::View(range) => write!(f, "the reverse map does not know {range:?} as it is"),
            Self::Resident { counted, found } => {
                write!(f, "{counted} pages are counted as resident, but {found} are mapped")
            }
        }
    }
}
