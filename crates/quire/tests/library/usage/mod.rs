//! How much each address space maps, against a naive reading of all page tables.

mod cases;
mod flags;
mod folios;
mod lockstep;
mod moments;
mod naive;
mod one_region;
mod seven;
use crate::vm::world;
