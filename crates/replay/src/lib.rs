//! What the command `quire` does with programs: it records their memory calls and faults, replays them under other
//! policies, gives advice on folio sizes, and verifies it on the kernel. One module for each subcommand, and below
//! them what they share.
//!
//! The package `quire-cli` is the command, and has what measures the library itself. It is a package of its own
//! since builds for tests optimise this one: most tests of the command wait for a replay.

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
