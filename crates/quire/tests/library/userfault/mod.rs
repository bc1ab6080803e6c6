//! Handlers of faults: missing pages of a range are brought by a program, and no page or wake-up is lost.

mod changes;
mod failures;
mod handlers;
mod huge;
mod modes;
mod moments;
mod support;
mod threads;
use crate::vm::world;
