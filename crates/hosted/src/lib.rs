//! A machine inside a process: memory from an arena, threads as CPUs, a software MMU with modelled TLBs.
//!
//! A [`Hosted`] machine implements [`quire::platform::Platform`] as an ordinary value; a process may hold
//! many. It serves three purposes: tests (every check on), benches (every check off, real interrupts on), and
//! the replay of recorded programs. [`HostedConfig`] selects its checks and models.
//!
//! # Invariants
//!
//! The `SAFETY` arguments of this crate cite these.
//!
//! - **H1** An arena maps every byte of the machine's ranges, readable and writable, from construction until it is
//!   dropped, at `zero + physical address`; no other part of the process knows that memory.
//! - **H2** The space between two ranges (and around them, up to the reservation's ends) is reserved and
//!   inaccessible, so that a stray access faults and never reaches the process's other memory.
//! - **H3** At most one thread at a time is a given CPU of a given machine.
//! - **H4** The software MMU reaches memory only through frames that lie in a range, and only with atomic operations.
//! - **H5** An access of the software MMU happens wholly under the lock of its CPU's modelled TLB, so that a flush that
//!   has returned leaves no access through an older translation in flight.
//! - **H6** A source of interrupts and a watch, with its timer and handler, are on their thread's list from
//!   the making of a guard until the guard is dropped, in stack order; the guard borrows them, and no other
//!   thread touches them.
//! - **H7** The handlers of the two signals touch only this crate's variables of the thread, which need no construction
//!   and no destructor, keep `errno`, let no panic out, and call foreign code only where an unsafe function's caller
//!   promised that it may be called so.
//! - **H8** A system call reads and writes only the structures that it is given, which live until it returns.
#![deny(unsafe_code)]

mod arena;
mod bare;
mod barriers;
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
