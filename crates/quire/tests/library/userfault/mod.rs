//! Handlers of faults: what is missing in a range comes from elsewhere, and nothing is lost on the way.

mod changes;
mod failures;
mod handlers;
mod huge;
mod modes;
mod moments;
mod support;
mod threads;
use crate::vm::world;
