//! Address spaces on a hosted machine, with every check of the machine on.

mod common;

#[path = "vm/basic.rs"]
mod basic;
#[path = "vm/batches.rs"]
mod batches;
#[path = "vm/failures.rs"]
mod failures;
#[path = "vm/forming.rs"]
mod forming;
#[path = "vm/gigantic.rs"]
mod gigantic;
#[path = "vm/mappings.rs"]
mod mappings;
#[path = "vm/reclaim.rs"]
mod reclaim;
#[path = "vm/threads.rs"]
mod threads;
#[path = "vm/track.rs"]
mod track;
#[path = "vm/truncate.rs"]
mod truncate;
#[path = "vm/world.rs"]
mod world;
#[path = "vm/zeroes.rs"]
mod zeroes;
