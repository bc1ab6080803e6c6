//! A program: how it gets its memory, and how it runs.

pub mod elf;
pub mod process;
pub mod stack;
