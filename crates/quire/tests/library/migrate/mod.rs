//! Folios in use move to other frames, and ranges of blocks are emptied by it.

mod compact;
mod contig;
mod exhaustion;
mod failures;
mod folios;
mod hotplug;
mod kernels;
mod lockstep;
mod poison;
mod support;
mod threads;
mod unrecoverable;
use crate::vm::world;
