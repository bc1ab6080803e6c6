//! A machine inside a process: memory from an arena, threads as CPUs, a software MMU with modelled TLBs.
//!
//! A [`Hosted`] machine implements [`quire::platform::Platform`] as an ordinary value; a process may hold
//! many. It serves three purposes: tests (every check on), benches (every check off, real interrupts on), and
//! the replay of recorded programs. [`HostedConfig`] selects its checks and models.
//!
//! `SAFETY` comments cite H1 to H9 of `docs/invariants/hosted-and-command.md` in the repository.
#![deny(unsafe_code)]

mod arena;
mod bare;
mod barriers;
mod cleared;
mod config;
mod counters;
mod error;
mod failures;
mod files;
// Under Miri, which executes no assembly, flags are neither saved nor restored.
#[cfg_attr(miri, allow(dead_code))]
mod flags;
mod footprint;
mod interrupts;
mod machine;
mod mmu;
mod nested;
mod plan;
mod platform;
mod populated;
mod ranks;
pub mod raw;
mod task;
mod tlb;
mod violation;

pub use arena::Arena;
pub use bare::{Bare, Pinned};
pub use cleared::ClearedAgain;
pub use config::{Backing, HostedConfig, MemoryRange, OnViolation};
pub use counters::Counters;
pub use error::HostedError;
pub use files::{FileCounters, SyntheticFiles};
pub use footprint::Footprint;
pub use interrupts::Interrupted;
#[cfg(not(miri))]
pub use interrupts::{Access, Steps};
pub use machine::Hosted;
pub use mmu::{FaultCause, PageFault, Translation};
pub use nested::{BracketStats, Found, Nested, NestedLeaf, NestedStats, VirtualCpu, during};
pub use plan::{FailurePlan, InterruptPlan};
pub use violation::Violation;
