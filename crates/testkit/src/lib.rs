//! Shared by the tests of Quire's crates: machines, accesses with their faults, CPUs that are held up in the
//! middle of their work, and messages of panics.
#![forbid(unsafe_code)]

// What it has compiled of Quire is used, and nothing else.
use oracle as _;

mod accesses;
mod held_up;
mod machines;
mod panics;
mod share;

pub use accesses::{load, store};
pub use held_up::{HeldUp, PATIENCE, Stress, held_up, held_up_to_look, stress_time, unless_stuck, within};
pub use machines::{order, ranges_of, seed, with_allocator};
pub use panics::panic_message;
pub use share::{Share, long, runs};
