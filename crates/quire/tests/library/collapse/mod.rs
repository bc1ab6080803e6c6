//! Small pages become folios of 2 MiB, and back.

mod busy;
mod contention;
mod copies;
mod failures;
mod forks;
mod kernels;
use crate::pgtable::support as machine;
mod moments;
mod refusals;
mod scan;
mod skips;
mod steps;
mod support;
mod threads;
mod underused;
use crate::vm::world;
