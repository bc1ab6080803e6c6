//! The host machine: its properties, its processors, its clock, its settings.

pub mod cycles;
pub mod machine;
pub mod memory;
pub(crate) mod pools;
pub mod quiet;
pub mod thp;
pub mod threads;
pub mod vectors;
