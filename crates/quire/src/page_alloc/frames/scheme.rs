//! Schemes to count the leaves that map folios of whole blocks.
#![forbid(unsafe_code)]

/// One mapped page, in the number of a folio under [`CountScheme::TotalMapped`].
#[cfg(feature = "published")]
pub(in crate::page_alloc) const PAGES_MAPPED: u64 = 1 << 32;

/// How leaves of a folio of whole blocks are counted. The feature `published` adds published schemes to
/// measure against, chosen at start-up. These take no lock, so the task that removes the last leaf of a
/// pool's page may look at the page after its file has given it away.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "published", repr(u8))]
#[cfg_attr(not(feature = "published"), allow(unreachable_pub))]
pub enum CountScheme {
    /// Exactly, for each frame, a table at a time ([`crate::memmap::SmallMaps`]).
    #[default]
    Dense,
    /// Exactly, by an atomic number for each frame that is 64 bytes from the next, as page descriptors are:
    /// 16 MiB for a page of 1 GiB. A leaf of 2 MiB changes 512 of them, one of the whole folio one more. The
    /// "THP-like" mapcount of Houghton, "hugetlb: introduce HugeTLB high-granularity mapping" v2 (2023).
    #[cfg(feature = "published")]
    PerFrame,
    /// One number for the folio: how many leaves of any size map it, changed once for each run of leaves. The
    /// count of one frame is not known: the answer is the folio's, and a folio that is mapped in parts is not
    /// split. The "head-only" mapcount of the same discussion, done a table at a time.
    #[cfg(feature = "published")]
    HeadOnly,
    /// [`Self::HeadOnly`] with one atomic change for each leaf, as it was posted.
    #[cfg(feature = "published")]
    HeadOnlyByLeaf,
    /// Two numbers for the folio, changed together once for each run of leaves: how many leaves map it, and
    /// how many pages they map, a page as often as it is mapped. The count of one frame is their average,
    /// rounded, as told by Hildenbrand, "mm/rmap: support arbitrary folio mappings", RFC of April 2026, for
    /// folios that are no pages of pools. There a lock in the folio guards the two, and two slots for address
    /// spaces beside them; here they are halves of one word, so at most 2^32 pages are counted, and there are
    /// no slots.
    #[cfg(feature = "published")]
    TotalMapped,
}

impl CountScheme {
    /// All of them.
    #[cfg(feature = "published")]
    pub const ALL: [Self; 5] =
        [Self::Dense, Self::PerFrame, Self::HeadOnly, Self::HeadOnlyByLeaf, Self::TotalMapped];

    /// Without the feature `published`, always true.
    #[inline]
    pub(in crate::page_alloc) const fn is_dense(self) -> bool {
        matches!(self, Self::Dense)
    }

    #[cfg(feature = "published")]
    #[inline]
    pub(in crate::page_alloc) const fn is_head_only(self) -> bool {
        matches!(self, Self::HeadOnly | Self::HeadOnlyByLeaf | Self::TotalMapped)
    }

    /// How many leaves map the folio whose head has this number.
    #[cfg(feature = "published")]
    #[inline]
    pub(in crate::page_alloc) const fn leaves(self, head: u64) -> u64 {
        if matches!(self, Self::TotalMapped) { head % PAGES_MAPPED } else { head }
    }

    /// How often each of a folio's `frames` is mapped, as far as its head's number tells: the number of its
    /// leaves, or the average, and at least 1 if any is mapped.
    #[cfg(feature = "published")]
    #[inline]
    pub(in crate::page_alloc) const fn count_of_a_frame(self, head: u64, frames: u64) -> u64 {
        if !matches!(self, Self::TotalMapped) || head == 0 {
            return head;
        }
        let average = (head / PAGES_MAPPED + frames / 2) / frames;
        if average == 0 { 1 } else { average }
    }
}
