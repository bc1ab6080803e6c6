//! What CPUs share and how, with nothing but a processor: a spin lock and a reader-writer lock, both with
//! ranks; a lease on what one CPU alone touches; a stack of numbers.
//!
//! # The lock protocol
//!
//! A task takes locks in ascending [`Rank`] only, and holds at most one of a rank (two page tables at once
//! have a rank each). What a rank protects is said at its variant. The pattern everywhere is: *preallocate,
//! lock, recheck, commit, unlock*; no allocation, clearing or wait for a flush happens under a page-table
//! lock or anything above it in rank. A machine that checks (every hosted one) is told of each lock through
//! [`FramePlatform::lock_taken`](crate::platform::FramePlatform::lock_taken) and refuses a wrong order.
//!
//! Nothing here turns interrupts off. A context that may have interrupted a lock holder on its own CPU uses
//! [`SpinLock::try_lock`] only, so no CPU ever waits for itself.

mod lease;
mod pinned;
mod rwlock;
mod sections;
mod spin;
mod stack;

pub use lease::Lease;
pub use pinned::Pinned;
pub use rwlock::{ReadGuard, RwLock, WriteGuard};
pub use sections::{Section, Sections};
pub use spin::{RawLock, SpinGuard, SpinLock};
pub use stack::{Stack, Taken};

pub use crate::rank::Rank;
