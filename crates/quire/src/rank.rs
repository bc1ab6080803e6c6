//! The ranks of locks. [`crate::sync`] describes the protocol.

/// The order in which locks may be taken: ascending, one of each.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Rank {
    /// An address space's VMA tree and the existence of its page-table pages (a reader-writer lock).
    AddressSpace = 1,
    /// The families of address spaces.
    Families,
    /// The manager's table of open files.
    FileTable,
    /// One file's page cache.
    File,
    /// The mappings of one file.
    FileViews,
    /// One gigantic folio that is being cleared.
    GiganticClears,
    /// The position of the search for underused folios.
    Underused,
    /// A procedure that is installed when it may be needed.
    Hook,
    /// The events of one handler of faults.
    Userfault,
    /// The entries of one page-table page.
    PageTable,
    /// The entries of a second page-table page: the child's in `fork`, the target's in `mremap`.
    PageTableSecond,
    /// The limits of file systems of huge pages.
    HugeFs,
    /// The pool of huge pages of one size.
    HugePool,
    /// The right to wait for a grace period.
    #[cfg(feature = "published")]
    Sections,
    /// A cache of small objects.
    Slab,
    /// The right to revoke one CPU's lists.
    ListDrain,
    /// One block: its bitmaps and map counts.
    Block,
    /// Slots for map counts of folios of whole blocks.
    CountRoom,
    /// The list of folios that wait to be split.
    DeferredSplits,
    /// One shard's index of partly used blocks.
    Shard,
    /// One region's pool of whole free blocks.
    Pool,
    /// The parked magazines of one list.
    Parked,
}
