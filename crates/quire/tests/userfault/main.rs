//! Handlers of faults: what is missing in a range comes from elsewhere, and nothing is lost on the way.

mod changes;
#[path = "../common/mod.rs"]
mod common;
mod failures;
mod handlers;
mod huge;
mod modes;
mod moments;
mod support;
mod threads;
#[path = "../vm/world.rs"]
#[allow(dead_code)]
mod world;
