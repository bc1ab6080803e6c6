//! How much memory an address space uses, and how much of that it shares, as `/proc/PID/smaps`.
//!
//! Source: Linux, `Documentation/filesystems/proc.rst` (smaps).
#![forbid(unsafe_code)]

use core::ops::AddAssign;

use crate::addr::{PageSize, VirtAddr, VirtRange};
use crate::arch::EntryFlags;
use crate::filemap::FileKind;
use crate::limits::FRAME_SIZE;
use crate::platform::Platform;
use crate::vm::mapping::vma::VmaFlags;
use crate::vm::observe::info::VmaInfo;
use crate::vm::observe::mapped::Mapped;
use crate::vm::observe::view::Observation;

/// How much is mapped: in bytes, unless a row says otherwise. Huge pages of pools count only in the rows that
/// name them, as with Linux; the zero frame counts in none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// All (`Rss`).
    pub rss: u64,
    /// Proportional shares: each page's size divided by how many times it is mapped (`Pss`), in 1/4096 of a
    /// byte, rounded down for each page.
    pub pss: u64,
    /// Of `pss`, what was stored through this mapping's leaves (`Pss_Dirty`).
    pub pss_dirty: u64,
    /// Of `pss`, what is not pages of files (`Pss_Anon`).
    pub pss_anon: u64,
    /// Of `pss`, shared anonymous memory (`Pss_Shmem`). The rest is pages of files (`Pss_File`).
    pub pss_shmem: u64,
    /// Mapped more than once, and not stored through this mapping's leaf (`Shared_Clean`).
    pub shared_clean: u64,
    /// Mapped more than once, and stored through it (`Shared_Dirty`).
    pub shared_dirty: u64,
    /// Mapped here alone, and not stored through (`Private_Clean`).
    pub private_clean: u64,
    /// Mapped here alone, and stored through (`Private_Dirty`).
    pub private_dirty: u64,
    /// Marked as accessed (`Referenced`).
    pub referenced: u64,
    /// Not pages of files (`Anonymous`).
    pub anonymous: u64,
    /// Freed lazily, and not stored to since (`LazyFree`).
    pub lazy_free: u64,
    /// Anonymous, and mapped by a leaf of 2 MiB or more (`AnonHugePages`).
    pub anon_huge: u64,
    /// Shared anonymous memory that a leaf of 2 MiB maps (`ShmemPmdMapped`).
    pub shmem_large: u64,
    /// Pages of files that a leaf of 2 MiB maps (`FilePmdMapped`).
    pub file_large: u64,
    /// Huge pages mapped more than once (`Shared_Hugetlb`).
    pub shared_hugetlb: u64,
    /// Huge pages mapped here alone (`Private_Hugetlb`).
    pub private_hugetlb: u64,
    /// As `pss`, of huge pages.
    pub hugetlb_pss: u64,
    /// Mapped by leaves of 4 KiB, 2 MiB and 1 GiB, huge pages left out.
    pub by_size: [u64; 3],
    /// Huge pages mapped by leaves of 4 KiB, 2 MiB and 1 GiB.
    pub hugetlb_by_size: [u64; 3],
    /// `pss` of locked mappings (`Locked`).
    pub locked: u64,
}

/// Fractional bits of a proportional share.
const SHARE_BITS: u32 = 12;

impl Usage {
    /// Bytes that this address space alone maps (`USS`), which its end would free.
    pub const fn uss(&self) -> u64 {
        self.private_clean + self.private_dirty
    }

    /// The proportional share in whole bytes.
    pub const fn pss_bytes(&self) -> u64 {
        self.pss >> SHARE_BITS
    }

    /// Rows of `/proc/PID/smaps`, in its order: name and KiB.
    pub fn lines(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        [
            ("Rss", self.rss),
            ("Pss", self.pss_bytes()),
            ("Shared_Clean", self.shared_clean),
            ("Shared_Dirty", self.shared_dirty),
            ("Private_Clean", self.private_clean),
            ("Private_Dirty", self.private_dirty),
            ("Referenced", self.referenced),
            ("Anonymous", self.anonymous),
            ("LazyFree", self.lazy_free),
            ("AnonHugePages", self.anon_huge),
            ("ShmemPmdMapped", self.shmem_large),
            ("FilePmdMapped", self.file_large),
            ("Shared_Hugetlb", self.shared_hugetlb),
            ("Private_Hugetlb", self.private_hugetlb),
            ("Locked", self.locked >> SHARE_BITS),
        ]
        .into_iter()
        .map(|(name, bytes)| (name, bytes / 1024))
    }

    fn add_huge(&mut self, pages: &Mapped, bytes: u64) {
        let row = if pages.spaces > 1 { &mut self.shared_hugetlb } else { &mut self.private_hugetlb };
        *row += bytes;
        self.hugetlb_pss += share(pages);
        self.hugetlb_by_size[pages.size as usize] += bytes;
    }

    fn add(&mut self, pages: &Mapped, bytes: u64, shmem: bool, locked: bool) {
        let dirty = pages.has(EntryFlags::DIRTY);
        let row = match (pages.spaces > 1, dirty) {
            (true, true) => &mut self.shared_dirty,
            (true, false) => &mut self.shared_clean,
            (false, true) => &mut self.private_dirty,
            (false, false) => &mut self.private_clean,
        };
        *row += bytes;
        self.rss += bytes;
        self.pss += share(pages);
        self.pss_dirty += if dirty { share(pages) } else { 0 };
        self.by_size[pages.size as usize] += bytes;
        let (anon, large) = (pages.has(EntryFlags::ANON), pages.size != PageSize::Size4K);
        if anon {
            self.pss_anon += share(pages);
        } else if shmem {
            self.pss_shmem += share(pages);
        }
        let rows = [
            (&mut self.referenced, pages.has(EntryFlags::ACCESSED)),
            (&mut self.anonymous, anon),
            (&mut self.lazy_free, pages.has(EntryFlags::LAZY_FREE) && !dirty),
            (&mut self.anon_huge, anon && large),
            (&mut self.shmem_large, !anon && large && shmem),
            (&mut self.file_large, !anon && large && !shmem),
        ];
        rows.into_iter().filter(|(_, applies)| *applies).for_each(|(row, _)| *row += bytes);
        if locked {
            self.locked += share(pages);
        }
    }
}

fn share(pages: &Mapped) -> u64 {
    pages.frames.count * ((FRAME_SIZE << SHARE_BITS) / pages.spaces.max(1))
}

impl AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        let sums = self.by_size.iter_mut().chain(&mut self.hugetlb_by_size);
        for (sum, more) in sums.zip(other.by_size.into_iter().chain(other.hugetlb_by_size)) {
            *sum += more;
        }
        self.rss += other.rss;
        self.pss += other.pss;
        self.pss_dirty += other.pss_dirty;
        self.pss_anon += other.pss_anon;
        self.pss_shmem += other.pss_shmem;
        self.shared_clean += other.shared_clean;
        self.shared_dirty += other.shared_dirty;
        self.private_clean += other.private_clean;
        self.private_dirty += other.private_dirty;
        self.referenced += other.referenced;
        self.anonymous += other.anonymous;
        self.lazy_free += other.lazy_free;
        self.anon_huge += other.anon_huge;
        self.shmem_large += other.shmem_large;
        self.file_large += other.file_large;
        self.shared_hugetlb += other.shared_hugetlb;
        self.private_hugetlb += other.private_hugetlb;
        self.hugetlb_pss += other.hugetlb_pss;
        self.locked += other.locked;
    }
}

impl<P: Platform> Observation<'_, '_, P> {
    /// See [`Mm::smaps`](crate::vm::Mm::smaps).
    pub(in crate::vm) fn smaps(self, range: VirtRange, mut show: impl FnMut(&VmaInfo, &Usage)) {
        let mut at = range.start;
        while let Some(vma) = self.mapping_in(VirtRange { start: at, end: range.end.max(at) }) {
            let mut usage = Usage::default();
            let huge = matches!(vma.file, Some((FileKind::Huge { .. }, _)));
            let shmem = matches!(vma.file, Some((FileKind::Shmem { .. }, _)));
            let locked = vma.flags.contains(VmaFlags::LOCKED);
            self.mapped(vma.range.intersect(range), |pages| {
                let bytes = pages.frames.count * FRAME_SIZE;
                if huge {
                    usage.add_huge(pages, bytes);
                } else if !pages.has(EntryFlags::SPECIAL) {
                    usage.add(pages, bytes, shmem, locked);
                }
            });
            show(&vma, &usage);
            at = vma.range.end;
        }
    }

    /// See [`Mm::usage`](crate::vm::Mm::usage).
    pub(in crate::vm) fn usage(self, range: VirtRange) -> Usage {
        let mut sum = Usage::default();
        self.smaps(range, |_, usage| sum += *usage);
        sum
    }

    /// See [`Mm::usage_of_all`](crate::vm::Mm::usage_of_all).
    pub(in crate::vm) fn usage_of_all(self) -> Usage {
        self.usage(VirtRange::new(VirtAddr(0), self.context().mode().user_range().end))
    }

    fn mapping_in(self, range: VirtRange) -> Option<VmaInfo> {
        let space = self.space.read(self.memory.platform());
        if range.is_empty() { None } else { space.tree.first_in(range).map(VmaInfo::from) }
    }
}
