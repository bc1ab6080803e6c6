//! The command `quire`: records a program's memory calls and faults, replays them under other policies, and measures
//! the library beside Linux. One module for each subcommand; `cli` chooses among them.
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `bench` | on | `quire bench`, `compare` and `report`: more than half of the code |
//! | `boot` | on | `quire boot`, which packs a program for the example kernel |

pub mod advise;
#[cfg(feature = "bench")]
pub mod bench;
#[cfg(feature = "boot")]
pub mod boot;
pub mod calibrate;
pub mod cli;
#[cfg(feature = "bench")]
pub mod compare;
pub mod export;
pub mod files;
pub mod host;
pub mod manual;
pub mod output;
pub mod record;
// Only `bench` uses some of it.
#[cfg_attr(not(feature = "bench"), allow(dead_code, unused_imports))]
pub mod replay;
#[cfg(feature = "bench")]
pub mod report;
pub mod restore;
pub mod settings;
mod tlb;
pub mod trace;
pub mod verify;
