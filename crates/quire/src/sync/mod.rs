//! Synchronisation of CPUs: spin locks and reader-writer locks with ranks, leases, sections and a stack.
//!
//! # The lock protocol
//!
//! A task takes locks in ascending [`Rank`] only, and holds at most one of a rank (two page tables at once
//! have a rank each). The doc of a rank says what it protects. The pattern everywhere is: *preallocate, lock,
//! recheck, commit, unlock*. Under a page-table lock or any lock of higher rank, no task allocates, clears or
//! waits for a flush. The library reports each lock through
//! [`FramePlatform::lock_taken`](crate::platform::FramePlatform::lock_taken); a machine that checks, as every
//! hosted one does, refuses a wrong order.
//!
//! Nothing here turns interrupts off. A context that may have interrupted a lock holder on its own CPU uses
//! [`SpinLock::try_lock`] only, so no CPU ever waits for itself.

mod lease;
mod pinned;
mod rwlock;
#[cfg(feature = "published")]
mod sections;
mod spin;
mod stack;

pub use lease::Lease;
pub use pinned::Pinned;
pub use rwlock::{ReadGuard, RwLock, WriteGuard};
#[cfg(feature = "published")]
pub use sections::{Section, Sections};
pub use spin::{RawLock, SpinGuard, SpinLock};
pub use stack::{Stack, Taken};

pub use crate::rank::Rank;
