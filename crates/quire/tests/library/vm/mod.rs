//! Address spaces on a hosted machine, with every check of the machine on.

mod advices;
mod basic;
mod batches;
mod beside;
mod beside_threads;
mod busy;
#[cfg(debug_assertions)]
mod callers;
mod failures;
mod file_bytes;
mod folio_override;
mod gigantic;
mod gigantic_clears;
mod inaccessible;
mod kept;
mod kernel_half;
mod limits;
mod linux;
mod map_limit;
mod mappings;
mod nodes;
mod reclaim;
mod recorded;
mod retries;
mod switch;
mod threads;
mod track;
mod truncate;
mod views;
mod vmstat;
pub(crate) mod world;
mod zeroes;
