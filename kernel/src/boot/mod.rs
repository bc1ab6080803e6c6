//! From power-on to the kernel's own page tables.

pub mod command;
mod entry;
pub mod start_info;
pub mod tables;
