//! The library's locks, compiled from its own files.

pub use quire::rank::Rank;
pub use quire::sync::Pinned;

#[path = "../../src/sync/rwlock.rs"]
mod rwlock;
#[path = "../../src/sync/spin.rs"]
mod spin;

pub use rwlock::RwLock;
pub use spin::{RawLock, SpinLock};
