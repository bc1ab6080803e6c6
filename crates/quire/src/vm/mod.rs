//! Address spaces: which mappings there are, and one file for each verb that changes them.
//!
//! [`Mm`] is an address space; [`MmShared`] is what all of a machine share. The set of mappings is a [`tree`] of [`vma`]s
//! that [`edit`] keeps minimal and [`layout`] finds room in.

mod collapse;
mod fault;
mod file;
mod gigantic;
mod hugetlb;
mod mapping;
mod memory_failure;
mod migrate;
mod observe;
mod reclaim;
mod rmap;
mod space;
pub mod tree;
mod userfault;
mod verbs;

pub use collapse::{
    CollapseLimits, CollapseSteps, Collapsed, Collapser, Refusal, Scanned, Splitter, Underused,
};
pub use fault::{Access, FaultKind, FaultOutcome};
pub use file::handle::File;
pub use hugetlb::file::HugeFs;
pub use mapping::policy::{FolioOverride, FolioPolicy, HugeAdvice, OrderPolicy, OrderSet};
pub use mapping::{policy, vma};
pub use memory_failure::lose::MemoryFailure;
pub use observe::info::{MmFault, VmaInfo};
pub use observe::mapped::Mapped;
pub use observe::page_flags::PageFlags;
pub use observe::pagemap::PageWord;
pub use observe::secondary::Secondary;
pub use observe::smaps::Usage;
pub use observe::translate::Translated;
pub use space::mm::{LockMode, Mm, Rss};
pub use space::shared::Memory;
pub use tree::layout::Placement;
pub use tree::{edit, layout};
pub use userfault::{
    Answer, AnswerMode, Registration, TakenEvent, Ticket, Userfault, UserfaultChanges, UserfaultEvent,
    UserfaultFault, UserfaultInfo, UserfaultKind, UserfaultModes,
};
pub use verbs::fork::ForkStrategy;
pub use verbs::madvise::Advice;
pub use verbs::mmap::{Backing, MapRequest, Sharing};
pub use verbs::mremap::Remap;
