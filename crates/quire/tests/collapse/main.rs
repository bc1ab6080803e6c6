//! Small pages become folios of 2 MiB, and back.

mod busy;
#[path = "../common/mod.rs"]
mod common;
mod contention;
mod copies;
mod failures;
mod forks;
mod kernels;
#[path = "../pgtable/support.rs"]
#[allow(dead_code, unreachable_pub)]
mod machine;
mod moments;
mod refusals;
mod scan;
mod skips;
mod steps;
mod support;
mod threads;
mod underused;
#[path = "../vm/world.rs"]
#[allow(dead_code)]
mod world;
