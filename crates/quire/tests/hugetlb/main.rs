//! Pools of huge pages on a hosted machine.

#[path = "../common/mod.rs"]
mod common;
mod control;
mod groups;
mod lockstep;
mod resize;
mod support;
mod users;
mod mappings;
mod files;
mod world;
