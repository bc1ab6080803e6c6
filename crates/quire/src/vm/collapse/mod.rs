//! Collapse: 2 MiB of small pages become one folio, mapped by one leaf.
//!
//! If the pages already stand in one block in order, only the shape of the page table changes. Else they are
//! copied to a new folio ([`anon`]), or moved to a block of their own if they are pages of a file
//! ([`mod@file`]). A program asks for it ([`Mm::collapse`](crate::vm::Mm::collapse)), or the background does
//! it ([`scan`]). The reverse is [`underused`]: it splits folios that are mostly zero, and frees the zeroes.
//!
//! (Linux: `mm/khugepaged.c`; Documentation/admin-guide/mm/transhuge.rst. It clears the entry above the
//! table, and copies with the address space's lock held for writing, which keeps all tasks out.)

pub(super) mod anon;
pub(super) mod call;
pub(super) mod cursor;
pub(super) mod file;
pub(super) mod huge;
pub(super) mod limits;
pub(super) mod next_space;
pub(super) mod report;
pub(super) mod scan;
pub(super) mod splitter;
pub(super) mod underused;

pub(crate) use anon::Collapse;
pub use huge::CollapseSteps;
pub use limits::CollapseLimits;
pub use report::{Collapsed, Refusal};
pub use scan::{Collapser, Scanned};
pub use splitter::Splitter;
pub(super) use splitter::WhenShort;
pub use underused::Underused;
pub(crate) use underused::UnderusedFolios;
