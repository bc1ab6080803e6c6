//! What the descriptors of a pool's pages cost: nothing, since they stand in the block (`in_block`).
//!
//! With the feature `published`, `window` takes its place: policies that keep descriptors in a window, as has
//! been published. Both offer the same calls to the verbs of the pool.

#[cfg(not(feature = "published"))]
mod in_block;
mod state;
#[cfg(feature = "published")]
mod window;

#[cfg(feature = "published")]
pub(super) use state::Descriptors;
pub(super) use state::Gathered;
