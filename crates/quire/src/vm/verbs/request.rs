//! The arguments of [`Mm::mmap`](crate::vm::Mm::mmap).
#![forbid(unsafe_code)]

use crate::addr::VirtAddr;
use crate::arch::Protection;
use crate::filemap::FileRef;
use crate::hugetlb::HugeSize;
use crate::vm::tree::layout::Placement;

/// Which address spaces see stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sharing {
    /// Only this address space (`MAP_PRIVATE`).
    #[default]
    Private,
    /// All that map the object (`MAP_SHARED`).
    Shared,
}

/// What is mapped.
#[derive(Clone, Copy, Debug, Default)]
pub enum Backing<'a> {
    /// Memory that starts as zeroes (`MAP_ANONYMOUS`).
    #[default]
    Anonymous,
    /// A file, from one of its pages on.
    File {
        /// The file.
        file: &'a FileRef,
        /// The page at the mapping's start, in units of 4096 bytes.
        page_offset: u64,
    },
}

/// The arguments of [`Mm::mmap`](crate::vm::Mm::mmap).
#[derive(Clone, Copy, Debug, Default)]
pub struct MapRequest<'a> {
    /// Where to map; `placement` says whether this is a wish.
    pub addr: VirtAddr,
    /// How many bytes, rounded up to pages.
    pub len: u64,
    /// What accesses may do.
    pub prot: Protection,
    /// What `mprotect` may never allow, because the file was not opened for it.
    pub forbid: Protection,
    /// How `addr` is meant.
    pub placement: Placement,
    /// Which address spaces see stores.
    pub sharing: Sharing,
    /// What is mapped.
    pub backing: Backing<'a>,
    /// Grows down on faults below (`MAP_GROWSDOWN`); private anonymous memory only.
    pub grows_down: bool,
    /// Bring the pages in at once (`MAP_POPULATE`).
    pub populate: bool,
    /// Lock the pages (`MAP_LOCKED`).
    pub locked: bool,
    /// Reserve nothing (`MAP_NORESERVE`).
    pub noreserve: bool,
    /// Never becomes one mapping with a neighbour (a private mapping of `/dev/zero`).
    pub apart: bool,
    /// Huge pages of this size for anonymous memory (`MAP_HUGETLB`, `MAP_HUGE_2MB`, `MAP_HUGE_1GB`). Files
    /// have their own.
    pub huge: Option<HugeSize>,
}
