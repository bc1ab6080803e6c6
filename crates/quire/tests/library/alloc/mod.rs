//! Page frames, ranges of them and small objects on a hosted machine, without address spaces.

mod area_parts;
mod areas;
mod contig;
mod drain;
mod free_groups;
mod grouping;
mod interrupts;
mod lists;
mod metadata;
mod numa;
mod owned;
mod pages;
mod partial;
mod refusals;
mod slab;
mod split;
mod stats;
mod tables;
mod watermarks;
mod worn;
mod zero_ahead;
mod zeroes;
