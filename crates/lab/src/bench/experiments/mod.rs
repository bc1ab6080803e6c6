//! The experiments, one question per file.

pub mod aged;
pub mod boot;
pub mod brackets;
pub mod brk_test;
pub mod churn;
pub mod clear;
pub mod clear_cache;
pub mod clear_then_use;
pub mod collapse;
pub mod collapse_thp;
pub mod demote;
pub mod dontneed;
pub mod exit;
pub mod fault;
pub mod first_touch;
pub mod fork;
pub mod guest;
pub mod hugetlb_churn;
pub mod hugetlb_pool;
pub mod khugepaged;
pub mod mapcount;
pub mod mlock_gigantic;
pub mod mobility;
pub mod page_alloc;
pub mod page_test;
pub mod pcp_interrupt;
pub mod postcopy;
pub mod protect;
pub mod remap;
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
    &dontneed::EXPERIMENT,
    &exit::EXPERIMENT,
    &fork::EXPERIMENT,
    &protect::EXPERIMENT,
    &remap::EXPERIMENT,
    &aged::EXPERIMENT,
    &churn::EXPERIMENT,
    &collapse::EXPERIMENT,
    &mapcount::EXPERIMENT,
    &collapse_thp::EXPERIMENT,
    &khugepaged::EXPERIMENT,
    &clear::EXPERIMENT,
    &clear_cache::EXPERIMENT,
    &clear_then_use::EXPERIMENT,
    &first_touch::EXPERIMENT,
    &mlock_gigantic::EXPERIMENT,
    &hugetlb_pool::EXPERIMENT,
    &demote::EXPERIMENT,
    &hugetlb_churn::EXPERIMENT,
    &brackets::EXPERIMENT,
    &postcopy::EXPERIMENT,
    &guest::EXPERIMENT,
];

/// Each has a question and an expectation. Checked here, since a unit test would compile all arms a second
/// time.
const _: () = {
    let mut at = 0;
    while at < ALL.len() {
        let Experiment { question, expectation, baseline, .. } = ALL[at];
        assert!(matches!(question.as_bytes().last(), Some(b'?')));
        assert!(!expectation.is_empty() && !baseline.is_empty());
        at += 1;
    }
};

/// How many minutes all cases of an experiment take on two CPUs, eleven rounds each.
pub fn minutes(experiment: &str) -> u64 {
    match experiment {
        "mlock-gigantic" | "clear" => 8,
        "hugetlb-pool" => 6,
        "page-alloc" | "unmap" => 5,
        "fork" => 4,
        "churn" => 3,
        _ => 2,
    }
}
