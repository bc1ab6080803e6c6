//! Naive models of the memory manager and the driver that steps model and library together.
//!
//! A model gives the required answers in the plainest data structures: sorted vectors and maps, contents by
//! value, no locks, no sharing. The library's hard parts (folios, copy on write, detached tables, batched
//! flushes) do not exist in it, so their errors show as differences.
//!
//! The models:
//!
//! - [`frames`]: which folios are allocated.
//! - [`pagetable`]: which page maps where.
//! - [`space`]: address spaces with the semantics of Linux 6.18, and the contents of their pages.
//!
//! The driver:
//!
//! - [`ops`]: operations, drawn from a seed first, as data.
//! - [`subject`]: the driven system; [`machine`] is the library on its hosted machine.
//! - [`lockstep`]: steps a subject and the model, and shortens failing lists.
//! - [`counts`], [`mappings`]: checks of the whole state.
//! - [`campaign`]: many runs in a row.
//!
//! `QUIRE_SEED=n` runs one seed again, `QUIRE_LONG=1` runs all tests for sixty times as long.

pub mod campaign;
pub mod counts;
pub mod frames;
pub mod lockstep;
pub mod machine;
pub mod mappings;
pub mod ops;
pub mod pagetable;
pub mod space;
pub mod subject;
