//! Memory in use moves to other frames, and ranges of blocks are emptied by it.

#[path = "../common/mod.rs"]
mod common;
mod contig;
mod failures;
mod folios;
mod kernels;
mod lockstep;
mod poison;
mod support;
mod threads;
mod unrecoverable;
#[path = "../vm/world.rs"]
#[allow(dead_code)]
mod world;
