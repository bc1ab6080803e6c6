//! The experiments, one question per file.

pub mod boot;
pub mod brk_test;
pub mod fault;
pub mod mobility;
pub mod page_alloc;
pub mod page_test;
pub mod pcp_interrupt;
pub mod time_bench;
pub mod unmap;

use super::experiment::Experiment;

/// Every experiment, in the order they are listed and run.
pub const ALL: &[&Experiment] = &[
    &boot::EXPERIMENT,
    &page_alloc::EXPERIMENT,
    &time_bench::EXPERIMENT,
    &pcp_interrupt::EXPERIMENT,
    &mobility::EXPERIMENT,
    &page_test::EXPERIMENT,
    &brk_test::EXPERIMENT,
    &fault::EXPERIMENT,
    &unmap::EXPERIMENT,
];

#[cfg(test)]
mod tests;
