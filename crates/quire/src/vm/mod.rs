//! Address spaces: which mappings there are, and one file for each verb that changes them.
//!
//! [`Mm`] is an address space; [`Memory`] is what all of a machine share. The set of mappings is a [`tree`] of [`vma`]s
//! that [`edit`] keeps minimal and [`layout`] finds room in.

mod body;
mod brk;
mod collapse;
pub mod edit;
mod exit;
mod family;
mod fault;
mod file;
mod folio_maps;
mod fork;
mod forming;
mod huge_file;
mod huge_parts;
mod hugetlb;
mod info;
mod large_files;
pub mod layout;
mod madvise;
mod mapped;
mod memory;
mod memory_failure;
mod migrate;
mod mlock;
mod mm;
mod mmap;
mod moved;
mod mprotect;
mod mremap;
mod munmap;
mod page_counts;
mod page_flags;
mod pagemap;
pub mod policy;
mod populate;
mod reclaim;
mod rmap;
mod rss;
mod secondary;
mod sync;
mod track;
mod translate;
pub mod tree;
mod truncate;
mod usage;
mod userfault;
pub mod vma;

pub use collapse::{
    CollapseLimits, CollapseSteps, Collapsed, Collapser, Refusal, Scanned, Splitter, Underused,
};
pub use fault::{Access, FaultKind, FaultOutcome};
pub use file::File;
pub use fork::ForkStrategy;
pub use huge_file::HugeFs;
pub use info::{MmFault, VmaInfo};
pub use layout::Placement;
pub use madvise::Advice;
pub use mapped::Mapped;
pub use memory::Memory;
pub use memory_failure::MemoryFailure;
pub use mm::{LockMode, Mm, Rss};
pub use mmap::{Backing, MapRequest, Sharing};
pub use mremap::Remap;
pub use page_flags::PageFlags;
pub use pagemap::PageWord;
pub use policy::{FolioOverride, FolioPolicy, HugeAdvice, OrderPolicy, OrderSet};
pub use secondary::Secondary;
pub use translate::Translated;
pub use usage::Usage;
pub use userfault::{
    Answer, AnswerMode, Registration, TakenEvent, Ticket, Userfault, UserfaultChanges, UserfaultEvent,
    UserfaultFault, UserfaultInfo, UserfaultKind, UserfaultModes,
};
