//! A program: how it gets from a file into memory, and what it finds on its stack.

pub mod elf;
pub mod image;
pub mod script;
pub mod stack;
