//! The machine that this runs on: what it is, its processors, its clock, its settings.

pub mod cycles;
pub mod machine;
pub mod thp;
pub mod threads;
