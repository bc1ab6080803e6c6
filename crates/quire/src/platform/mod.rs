//! The platform traits: all that the library knows of the machine it runs on, in three layers.
//!
//! | trait | what needs it | to implement |
//! |---|---|---|
//! | [`FramePlatform`] | [`page_alloc`](crate::page_alloc), [`clear`](crate::clear), [`slab`](crate::slab), [`sync`](crate::sync) | 6 methods |
//! | [`TablePlatform`] | [`pgtable`](crate::pgtable), [`tlb`](crate::tlb) | 6 more |
//! | [`Platform`] | [`vm`](crate::vm), [`filemap`](crate::filemap), [`hugetlb`](crate::hugetlb), [`manager`](crate::manager) | the pager |
//!
//! A program that only allocates frames implements the first trait, and a kernel all three. Every other
//! method has a default; its documentation says what the default costs.
//!
//! A kernel implements the traits on a zero-sized type, so that `&self` costs nothing. Hosted and simulated
//! machines are ordinary values, many per process. Page-table entries are atomics in the direct map and not
//! platform calls, because an MMU, real or modelled, reads the same memory by itself.

mod event;
mod frames;
mod spaces;
mod start;
mod tables;

pub use event::Event;
#[cfg(feature = "published")]
pub use frames::ListGuard;
pub use frames::{Context, FramePlatform, TouchHint};
pub use spaces::{FileId, NoFiles, Pager, PagerError, Platform};
pub(crate) use start::check_start;
pub use tables::{FlushExtent, FlushRequest, TablePlatform};
