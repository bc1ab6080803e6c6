//! The experiments, one question per file.

pub mod boot;
pub mod fault;
pub mod page_alloc;
pub mod unmap;

use super::experiment::Experiment;

/// Every experiment, in the order they are listed and run.
pub const ALL: &[&Experiment] =
    &[&boot::EXPERIMENT, &page_alloc::EXPERIMENT, &fault::EXPERIMENT, &unmap::EXPERIMENT];

#[cfg(test)]
mod tests;
