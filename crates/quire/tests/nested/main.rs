//! A secondary MMU: every verb tells it what goes bad, and nothing else.

mod brackets;
#[path = "../common/mod.rs"]
mod common;
mod files;
mod huge;
mod places;
mod scene;
mod threads;

#[path = "../vm/world.rs"]
#[allow(dead_code, unused_imports)]
mod world;
