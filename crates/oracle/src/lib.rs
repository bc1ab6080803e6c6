//! Naive models of the memory manager and the driver that steps model and library together.
//!
//! A model says what the library must answer, in the plainest data structures that can say it: sorted vectors and
//! maps, contents by value, no locks, no sharing. Everything that costs the library thought (folios, copy on write,
//! detached tables, batched flushes) is invisible here, so that it shows as a difference when it goes wrong.
//!
//! The models:
//!
//! - [`frames`]: which folios are allocated.
//! - [`pagetable`]: which page maps where.
//! - [`space`]: address spaces with the semantics of Linux 6.18, and what their pages hold.
//!
//! The driver:
//!
//! - [`ops`]: operations, drawn from a seed first, as data.
//! - [`subject`]: what is driven; [`machine`] is the library on its hosted machine.
//! - [`lockstep`]: steps a subject and the model, and shortens what fails.
//! - [`counts`], [`mappings`]: checks of the whole state.
//! - [`campaign`]: many runs in a row.
//!
//! `QUIRE_SEED=n` runs one seed again, `QUIRE_LONG=1` runs all tests for thirty times as long.

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
