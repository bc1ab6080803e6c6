//! Page frames, ranges of them and small objects on a hosted machine, without address spaces.

#[path = "../common/mod.rs"]
mod common;
mod contig;
mod grouping;
mod lists;
mod metadata;
mod numa;
mod pages;
mod slab;
mod split;
#[path = "../clear/machine.rs"]
#[allow(dead_code)]
mod watched;
mod watermarks;
mod worn;
mod zero_ahead;
mod zeroes;
