//! The arms, one file each, by experiment. A new arm is a file here and its name in the list `all` beside it.

pub mod aged;
pub mod boot;
pub mod brackets;
pub mod churn;
pub mod clear;
pub mod collapse;
pub mod collapse_huge;
pub mod dontneed;
pub mod exit;
pub mod fault;
pub mod fork;
pub mod gigantic;
pub mod heap;
pub mod interrupts;
pub mod khugepaged;
pub mod mapcount;
pub mod mobility;
pub mod page_alloc;
pub mod pool;
pub mod postcopy;
pub mod primitives;
pub mod protect;
pub mod remap;
pub mod unmap;
