//! Whole folios in use: splitting, reserving the frames of a block, frames that go bad.

pub(super) mod bad;
pub(super) mod deferred;
pub(super) mod reserve;
pub(super) mod split;
