//! Schemes to count the leaves that map folios of whole blocks.
#![forbid(unsafe_code)]

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
}

impl CountScheme {
    /// All of them.
    #[cfg(feature = "published")]
    pub const ALL: [Self; 4] = [Self::Dense, Self::PerFrame, Self::HeadOnly, Self::HeadOnlyByLeaf];

    /// Without the feature `published`, always true.
    #[inline]
    pub(in crate::page_alloc) const fn is_dense(self) -> bool {
        matches!(self, Self::Dense)
    }

    #[cfg(feature = "published")]
    #[inline]
    pub(in crate::page_alloc) const fn is_head_only(self) -> bool {
        matches!(self, Self::HeadOnly | Self::HeadOnlyByLeaf)
    }
}
