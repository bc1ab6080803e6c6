//! Memory in use moves to other frames, and ranges of blocks are emptied by it.

#[path = "../common/mod.rs"]
mod common;
mod contig;
#[cfg(any())]
mod failures;
mod folios;
#[cfg(any())]
mod lockstep;
mod support;
#[cfg(any())]
mod threads;
#[path = "../vm/world.rs"]
#[allow(dead_code)]
mod world;
