//! The processors: features, ways into the kernel and out of it, interrupts, and what CPUs ask of each other.

pub mod apic;
pub mod area;
pub mod features;
pub mod fpu;
pub mod interrupts;
mod io_apic;
pub mod ipi;
pub mod registers;
pub mod segments;
pub mod start;
pub mod stop;
pub mod stubs;
pub mod topology;
pub mod traps;
pub mod user_mode;
