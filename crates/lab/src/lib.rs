//! The command `quire`: what `quire_replay` does with programs, and what measures the library beside Linux. One module
//! for each subcommand; `cli` chooses among them.
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `bench` | on | `quire bench`, `compare` and `report`: more than half of the code |
//! | `boot` | on | `quire boot`, which packs a program for the example kernel |

#[cfg(feature = "bench")]
pub mod bench;
#[cfg(feature = "boot")]
pub mod boot;
pub mod cli;
#[cfg(feature = "bench")]
pub mod compare;
pub mod manual;
#[cfg(feature = "bench")]
pub mod report;

pub use quire_replay::{
    advise, calibrate, export, files, host, output, record, replay, restore, settings, trace, verify,
};
