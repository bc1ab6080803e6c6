//! What the command `quire` does with programs: it records their memory calls and faults, replays them under other
//! policies, gives advice on folio sizes, and verifies it on the kernel. One module for each subcommand, and below
//! them what they share.
//!
//! The package `quire-cli` is the command, and has what measures the library itself. This one is a package of
//! its own, so that a build can choose a level of optimisation for each.

pub mod advise;
pub mod calibrate;
pub mod export;
pub mod files;
pub mod host;
pub mod output;
pub mod record;
pub mod replay;
pub mod restore;
pub mod settings;
mod tlb;
pub mod trace;
pub mod verify;
