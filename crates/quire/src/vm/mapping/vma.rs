//! One mapping of an address space: a range of addresses with the same attributes.
#![forbid(unsafe_code)]

use crate::addr::{VirtAddr, VirtRange};
use crate::arch::Protection;
use crate::filemap::FileRef;
use crate::flags::flag_set;
use crate::hugetlb::{HugeGroup, HugeSize};
use crate::limits::{FRAME_SHIFT, STACK_GUARD_BYTES};
use crate::nodes::{NodeNames, NodePolicy};
use crate::vm::mapping::moved::Moved;
use crate::vm::mapping::policy::{FolioOverride, HugeAdvice};
use crate::vm::userfault::Registration;

/// Yes-or-no properties of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct VmaFlags(u16);

flag_set!(
    VmaFlags: SHARED,
    GROWS_DOWN,
    LOCKED,
    LOCK_ON_FAULT,
    NO_RESERVE,
    RESERVED,
    SPLIT,
    NOT_FORKED,
    WIPED_ON_FORK,
    NOT_DUMPED,
    RANDOM,
    SEQUENTIAL,
    APART,
    ACCOUNTED,
);

impl VmaFlags {
    /// Stores go to the object, where all that map it see them; without the flag they go to private copies.
    pub const SHARED: Self = Self(1);
    /// The mapping grows towards lower addresses on a fault just below it (`MAP_GROWSDOWN`).
    pub const GROWS_DOWN: Self = Self(1 << 1);
    /// `mlock`: pages are never reclaimed.
    pub const LOCKED: Self = Self(1 << 2);
    /// `MLOCK_ONFAULT`: locked pages are brought in when they are touched, not at once.
    pub const LOCK_ON_FAULT: Self = Self(1 << 3);
    /// `MAP_NORESERVE`.
    pub const NO_RESERVE: Self = Self(1 << 4);
    /// Private huge pages: the pool reserves each one for which this address space has no page yet.
    pub const RESERVED: Self = Self(1 << 5);
    /// Shared huge pages: parts of a page may be mapped by themselves (`MADV_SPLIT`).
    pub const SPLIT: Self = Self(1 << 6);
    /// `MADV_DONTFORK`: a child does not get the mapping.
    pub const NOT_FORKED: Self = Self(1 << 7);
    /// `MADV_WIPEONFORK`: a child gets the mapping without its pages.
    pub const WIPED_ON_FORK: Self = Self(1 << 8);
    /// `MADV_DONTDUMP`: a core dump leaves the mapping out.
    pub const NOT_DUMPED: Self = Self(1 << 9);
    /// `MADV_RANDOM`. The library does not use it.
    pub const RANDOM: Self = Self(1 << 10);
    /// `MADV_SEQUENTIAL`. The library does not use it.
    pub const SEQUENTIAL: Self = Self(1 << 11);
    /// The mapping never becomes one with a neighbour, as a private mapping of `/dev/zero` in Linux, which keeps
    /// its file. Programs map it for that (`free_hugepage_region` of libhugetlbfs frees the whole mapping).
    pub const APART: Self = Self(1 << 12);
    /// A private mapping of a file that allowed stores at some time. It becomes one with no neighbour that never did, as in
    /// Linux, which charges it for pages of its own (`VM_ACCOUNT`). So a library's constants stay apart from what its
    /// loader changed and then protected, and `fork` leaves them to faults.
    pub const ACCOUNTED: Self = Self(1 << 13);
}

/// What a mapping maps.
#[derive(PartialEq, Eq, Debug)]
pub enum Backing {
    /// Memory of its own that starts as zeroes.
    Anonymous,
    /// A file, or the shmem file behind anonymous shared memory.
    File {
        /// The file; the mapping holds one count.
        file: FileRef,
        /// The file's page, 4096 bytes each, at the mapping's first address.
        page_offset: u64,
    },
}

/// Everything about a mapping except its addresses.
#[derive(PartialEq, Eq, Debug)]
pub struct VmaAttributes {
    /// What accesses may do now.
    pub protection: Protection,
    /// What `mprotect` may ever allow.
    pub may: Protection,
    /// Yes-or-no properties.
    pub flags: VmaFlags,
    /// What `madvise` said about large folios.
    pub advice: HugeAdvice,
    /// What the mapping says to each folio order.
    pub folios: FolioOverride,
    /// How far private pages are from where they were first mapped.
    pub moved: Moved,
    /// From which nodes its private pages come, if not from those of the task that touches them.
    pub nodes: Option<NodePolicy>,
    /// How the program named them.
    pub node_names: NodeNames,
    /// The group that is charged for reserved huge pages.
    pub group: HugeGroup,
    /// The handler that answers its faults.
    pub handler: Registration,
    /// What it maps.
    pub backing: Backing,
}

/// A mapping.
#[derive(PartialEq, Eq, Debug)]
pub struct Vma {
    /// Its addresses; never empty.
    pub range: VirtRange,
    /// Everything else.
    pub attributes: VmaAttributes,
}

impl Backing {
    /// The same object, `pages` further on; takes one more count on a file. Page offsets wrap, so a mapping
    /// may be moved back and forth by steps that are no valid file offsets.
    #[must_use]
    pub fn again(&self, pages: u64) -> Self {
        match self {
            Self::Anonymous => Self::Anonymous,
            Self::File { file, page_offset } => {
                Self::File { file: file.again(), page_offset: page_offset.wrapping_add(pages) }
            }
        }
    }

    /// Whether `next` is the same object, `pages` further on.
    fn continues(&self, next: &Self, pages: u64) -> bool {
        match (self, next) {
            (Self::Anonymous, Self::Anonymous) => true,
            (Self::File { file, page_offset }, Self::File { file: other, page_offset: offset }) => {
                file == other && page_offset.wrapping_add(pages) == *offset
            }
            _ => false,
        }
    }
}

impl VmaAttributes {
    /// Private anonymous memory with this protection.
    pub const fn anonymous(protection: Protection) -> Self {
        Self {
            protection,
            may: Protection::from_bits(7),
            flags: VmaFlags::NONE,
            advice: HugeAdvice::None,
            folios: FolioOverride::INHERIT,
            moved: Moved::NONE,
            nodes: None,
            node_names: NodeNames::Plain,
            group: HugeGroup::NONE,
            handler: Registration::NONE,
            backing: Backing::Anonymous,
        }
    }

    /// Sets what accesses may do now.
    pub fn protect(&mut self, protection: Protection) {
        self.protection = protection;
        let of_a_file = !self.is_anonymous() && self.huge_size().is_none();
        let accounts = protection.contains(Protection::WRITE) && self.is_private() && of_a_file;
        self.flags = self.flags.with_if(VmaFlags::ACCOUNTED, accounts);
    }

    /// A copy for a mapping that starts `pages` further on. Takes one more count on a file.
    #[must_use]
    pub fn again(&self, pages: u64) -> Self {
        Self { backing: self.backing.again(pages), ..*self }
    }

    /// Whether a mapping of `pages` pages with these attributes and an adjacent one with `next` can become
    /// one: everything agrees, neither stays apart, and a file continues at the right offset.
    pub fn merges_with(&self, next: &Self, pages: u64) -> bool {
        self.protection == next.protection
            && self.may == next.may
            && self.flags == next.flags
            && !self.flags.contains(VmaFlags::APART)
            && self.advice == next.advice
            && self.folios == next.folios
            && self.nodes == next.nodes
            && self.node_names == next.node_names
            && self.group == next.group
            && self.handler == next.handler
            && self.backing.continues(&next.backing, pages)
    }

    /// Whether stores go to private pages.
    #[inline]
    pub const fn is_private(&self) -> bool {
        !self.flags.contains(VmaFlags::SHARED)
    }

    /// The origin of a private page that is first mapped now, at this address.
    #[inline]
    pub fn origin_of(&self, addr: VirtAddr) -> VirtAddr {
        self.moved.origin_of(addr)
    }

    /// The size of its huge pages, if it maps such.
    #[inline]
    pub fn huge_size(&self) -> Option<HugeSize> {
        match &self.backing {
            Backing::File { file, .. } => file.node().huge_order().and_then(HugeSize::of_order),
            Backing::Anonymous => None,
        }
    }

    /// The same, if no part of a page may be mapped by itself.
    pub fn whole_size(&self) -> Option<HugeSize> {
        self.huge_size().filter(|_| !self.flags.contains(VmaFlags::SPLIT))
    }

    /// Whether it maps no file.
    #[inline]
    pub const fn is_anonymous(&self) -> bool {
        matches!(self.backing, Backing::Anonymous)
    }
}

impl Vma {
    /// A mapping of `range`, which is not empty.
    pub const fn new(range: VirtRange, attributes: VmaAttributes) -> Self {
        debug_assert!(!range.is_empty());
        Self { range, attributes }
    }

    /// The file's page at `addr`, which lies in the mapping; `None` for anonymous memory.
    #[inline]
    pub const fn file_page(&self, addr: VirtAddr) -> Option<u64> {
        match &self.attributes.backing {
            Backing::Anonymous => None,
            Backing::File { page_offset, .. } => {
                Some(page_offset.wrapping_add((addr.0 - self.range.start.0) >> FRAME_SHIFT))
            }
        }
    }

    /// Changes the range, and the page offset with its start: every address that stays keeps its page.
    pub fn set_range(&mut self, range: VirtRange) {
        debug_assert!(!range.is_empty());
        if let Backing::File { page_offset, .. } = &mut self.attributes.backing {
            *page_offset = page_offset.wrapping_add(range.start.page()).wrapping_sub(self.range.start.page());
        }
        self.range = range;
    }

    /// Whether `next` can be made part of `self`.
    pub fn merges_with(&self, next: &Self) -> bool {
        self.range.end == next.range.start
            && self.attributes.merges_with(&next.attributes, self.range.pages())
    }

    /// The start, less the guard gap of a mapping that grows down. No other mapping may end above it.
    #[inline]
    pub const fn guarded_start(&self) -> VirtAddr {
        if self.attributes.flags.contains(VmaFlags::GROWS_DOWN) {
            VirtAddr(self.range.start.0.saturating_sub(STACK_GUARD_BYTES))
        } else {
            self.range.start
        }
    }
}
