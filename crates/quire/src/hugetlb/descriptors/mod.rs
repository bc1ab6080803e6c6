//! The descriptors of a pool's pages: none, as descriptors stand in the block (`in_block`).
//!
//! With the feature `published`, `window` replaces it, with the same calls: descriptors stand in a window.

#[cfg(not(feature = "published"))]
mod in_block;
mod state;
#[cfg(feature = "published")]
mod window;

#[cfg(feature = "published")]
pub(super) use state::Descriptors;
pub(super) use state::Gathered;
