//! An address space's mappings and resident memory, and a check of its structures.
#![forbid(unsafe_code)]

use core::fmt;

use crate::addr::{FrameRange, VirtAddr, VirtRange};
use crate::arch::{EntryFlags, Protection};
use crate::filemap::FileKind;
use crate::limits::FRAME_SHIFT;
use crate::nodes::{NodeNames, NodePolicy};
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
    /// The accesses that it allows.
    pub protection: Protection,
    /// The accesses that `mprotect` may allow.
    pub may: Protection,
    /// Shared, growing down, locked, and so on.
    pub flags: VmaFlags,
    /// The advice of `madvise` about large folios.
    pub advice: HugeAdvice,
    /// The advice of `madvise` for each folio order.
    pub folios: FolioOverride,
    /// From which nodes its private pages come ([`Mm::set_nodes`](crate::vm::Mm::set_nodes)).
    pub nodes: Option<NodePolicy>,
    /// How the program named them ([`Mm::set_named_nodes`](crate::vm::Mm::set_named_nodes)).
    pub node_names: NodeNames,
    /// The faults that a handler is told of.
    pub handler: UserfaultModes,
    /// The kind of the mapped file and its page at the start; `None` for anonymous memory.
    pub file: Option<(FileKind, u64)>,
    /// The number of that file ([`File::number`](crate::vm::File::number)); 0 for anonymous memory.
    pub file_number: u64,
}

impl From<&Vma> for VmaInfo {
    fn from(vma: &Vma) -> Self {
        let (file, file_number) = match &vma.attributes.backing {
            Backing::Anonymous => (None, 0),
            Backing::File { file, page_offset } => {
                (Some((file.node().kind(), *page_offset)), file.node().number())
            }
        };
        Self {
            range: vma.range,
            protection: vma.attributes.protection,
            may: vma.attributes.may,
            flags: vma.attributes.flags,
            advice: vma.attributes.advice,
            folios: vma.attributes.folios,
            nodes: vma.attributes.nodes,
            node_names: vma.attributes.node_names,
            handler: vma.attributes.handler.modes(),
            file,
            file_number,
        }
    }
}

impl<P: Platform> Observation<'_, '_, P> {
    /// See [`Mm::vmas`](crate::vm::Mm::vmas).
    pub(in crate::vm) fn vmas(self, mut visit: impl FnMut(&VmaInfo)) {
        let space = self.space.read(self.memory.platform());
        space.tree.iter().for_each(|vma| visit(&vma.into()));
    }

    /// See [`Mm::vmas_in`](crate::vm::Mm::vmas_in).
    pub(in crate::vm) fn vmas_in(self, range: VirtRange, mut visit: impl FnMut(&VmaInfo)) {
        let space = self.space.read(self.memory.platform());
        space.tree.overlapping(range).for_each(|vma| visit(&vma.into()));
    }

    /// See [`Mm::next_vma`](crate::vm::Mm::next_vma).
    pub(in crate::vm) fn next_vma(self, addr: VirtAddr) -> Option<VmaInfo> {
        let space = self.space.read(self.memory.platform());
        space.tree.find_from(addr).map(VmaInfo::from)
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

    /// See [`Mm::resident_frames`](crate::vm::Mm::resident_frames).
    pub(in crate::vm) fn resident_frames(self) -> u64 {
        let resident = self.rss.sum();
        resident.anon + resident.file + resident.shmem
    }

    /// See [`Mm::validate`](crate::vm::Mm::validate).
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

    /// Checks that a mapping's leaves allow no more than the mapping, and counts the pages that they map.
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
                && self.is_found(vma, &run);
            if !allowed {
                wrong = Some(range);
            }
            found.count(counted(vma), leaf.has(EntryFlags::ANON), counted_pages(&run));
        });
        wrong.map_or(Ok(()), |range| Err(MmFault::Leaf(range)))
    }

    /// Whether the reverse map finds these leaves: they map anonymous frames, or pages of the mapping's file.
    fn is_found(self, vma: &Vma, run: &LeafRun) -> bool {
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

    /// Whether each anonymous frame's origin leads the reverse map to its leaf: the mapping knows how far it
    /// was moved and the origin agrees, or it does not know.
    fn is_from_here(self, vma: &Vma, run: &LeafRun) -> bool {
        let unlike = vma.attributes.moved == Moved::UNLIKE;
        (0..run.count * run.size.frames()).all(|at| {
            let origin = self.memory.pages().frames().origin(run.first.frame().add(at));
            let here = Origin::new(self.family, vma.attributes.origin_of(run.addr.add(at << FRAME_SHIFT)));
            origin.is_some_and(|origin| origin.family() == here.family() && (unlike || origin == here))
        })
    }
}

/// How many 4 KiB pages of a run count as resident.
fn counted_pages(run: &LeafRun) -> u64 {
    if run.first.has(EntryFlags::SPECIAL) { 0 } else { run.count * run.size.frames() }
}

/// The error that [`Mm::validate`](crate::vm::Mm::validate) found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MmFault {
    /// The tree of mappings.
    Tree(TreeFault),
    /// The page table.
    Table(TableViolation),
    /// Two neighbours that agree in everything were not merged; the first of them.
    NotMerged(VirtRange),
    /// A leaf lies in no mapping, has more rights than its mapping, or is unknown to the reverse map.
    Leaf(VirtRange),
    /// The file's views do not show the mapping as it is.
    View(VirtRange),
    /// A counter of resident memory differs from what the page table maps of its kind.
    Resident {
        /// Its value: anonymous pages, pages of files, of shared anonymous memory, or huge ones.
        counted: u64,
        /// Such pages in the page table.
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
