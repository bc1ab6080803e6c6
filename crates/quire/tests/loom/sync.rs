//! The library's locks, lease and stack, compiled from its own files.

pub use quire::rank::Rank;
pub use quire::sync::Pinned;

#[path = "../../src/sync/lease.rs"]
mod lease;
#[path = "../../src/sync/rwlock.rs"]
mod rwlock;
#[path = "../../src/sync/sections.rs"]
mod sections;
#[path = "../../src/sync/spin.rs"]
mod spin;
#[path = "../../src/sync/stack.rs"]
mod stack;

pub use lease::Lease;
pub use rwlock::RwLock;
pub use sections::Sections;
pub use spin::{RawLock, SpinGuard, SpinLock};
pub use stack::Stack;
