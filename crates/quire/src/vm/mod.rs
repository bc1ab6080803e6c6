//! Address spaces: their mappings, the verbs that change them, and the faults that bring memory in.
//!
//! [`Mm`] is an address space as callers hold it, and [`MmShared`] what the address spaces of a machine
//! share. `Mm` passes each call on:
//!
//! | module | duty |
//! |---|---|
//! | `verbs` | changes mappings: `mmap`, `munmap`, `mprotect`, `mremap`, `madvise`, `mlock`, `brk`, `fork`, exit |
//! | `fault` | makes an access possible |
//! | `gigantic` | clears folios of 1 GiB piece by piece |
//! | `hugetlb` | maps huge pages of pools, whole or in parts, and reserves them |
//! | `userfault` | waits for handlers of faults, and takes their answers |
//! | `collapse` | makes large leaves of small ones, and splits folios that are mostly zero |
//! | `file` | resizes files and writes them back, wherever they are mapped |
//! | `reclaim` | frees memory that can be restored |
//! | `migrate`, `memory_failure` | move memory that is in use; take bad memory out of use |
//! | `observe` | shows mappings, leaves, counts and flags |
//!
//! Below them, `rmap` finds the address spaces that map a page; `space` holds the parts of an address space,
//! its lock and the steps of teardown; [`tree`] is the set of [`vma`]s, which [`edit`] keeps minimal and in
//! which [`layout`] places new ones; `mapping` is one mapping.

mod collapse;
mod fault;
mod file;
mod gigantic;
mod handle;
mod hugetlb;
mod mapping;
mod memory_failure;
mod migrate;
mod mm;
mod observe;
mod reclaim;
mod rmap;
mod space;
pub mod tree;
mod userfault;
mod verbs;

pub use crate::arch::Access;
pub use collapse::{
    CollapseLimits, CollapseSteps, Collapsed, Collapser, Refusal, Scanned, Splitter, Underused,
};
pub use fault::step::{FaultKind, FaultOutcome};
pub use file::handle::File;
pub use hugetlb::file::HugeFs;
pub use mapping::policy::{FolioOverride, FolioPolicy, HugeAdvice, OrderPolicy, OrderSet};
pub use mapping::{policy, vma};
pub use memory_failure::lose::MemoryFailure;
pub use mm::facade::Mm;
pub use mm::secondary::Secondary;
pub use observe::info::{MmFault, Rss, VmaInfo};
pub use observe::mapped::Mapped;
pub use observe::page_flags::PageFlags;
pub use observe::pagemap::PageWord;
pub use observe::smaps::Usage;
pub use observe::translate::Translated;
pub use space::limits::MappedLimits;
pub use space::shared::{ForkStrategy, MmShared};
pub use space::state::LockMode;
pub use tree::layout::Placement;
pub use tree::{edit, layout};
pub use userfault::{
    Answer, AnswerMode, Registration, TakenEvent, Ticket, Userfault, UserfaultChanges, UserfaultEvent,
    UserfaultFault, UserfaultInfo, UserfaultKind, UserfaultModes,
};
pub use verbs::madvise::Advice;
pub use verbs::mremap::Remap;
pub use verbs::request::{Backing, MapRequest, Sharing};

pub(crate) use collapse::{Collapse, UnderusedFolios};
pub(crate) use gigantic::clear::GiganticClearing;
pub(crate) use memory_failure::lose::MemoryLoss;
pub(crate) use memory_failure::soft::SoftOffline;
pub(crate) use migrate::relocate::Migration;
pub(crate) use observe::view::PageSurvey;
pub(crate) use reclaim::shrink::Reclaim;
pub(crate) use rmap::reverse::ReverseMap;
