//! Who maps how much, against a naive reading of all page tables.

mod cases;
#[path = "../common/mod.rs"]
mod common;
mod flags;
mod folios;
mod lockstep;
mod naive;
#[path = "../vm/world.rs"]
#[allow(dead_code, unused_imports)]
mod world;
