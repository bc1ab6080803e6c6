//! The processor: its features, and the ways into the kernel and out of it.

pub mod area;
pub mod features;
pub mod fpu;
pub mod ipi;
pub mod registers;
pub mod segments;
pub mod stubs;
pub mod traps;
pub mod user_mode;
