//! Pages of files in leaves of 2 MiB: how they are collapsed, how they are counted, and what splits them.

mod busy;
mod counts;
mod failures;
mod faults;
mod handlers;
mod moments;
mod refusals;
mod scan;
mod stretches;
mod support;
mod threads;
mod verbs;
use crate::vm::world;
