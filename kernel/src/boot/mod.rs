//! From power-on to the kernel's own page tables.

pub mod acpi;
pub mod command;
mod entry;
pub mod five_levels;
pub mod start_info;
pub mod tables;
pub mod trampoline;
