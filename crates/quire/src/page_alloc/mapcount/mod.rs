//! Map counts: how many leaves map each frame, and what they free.

pub(super) mod counter;
pub(super) mod folio;
pub(super) mod group;
pub(super) mod holds;
pub(super) mod large_pieces;
pub(super) mod mapped;
mod merge;
pub(super) mod origins;
#[cfg(feature = "published")]
pub(super) mod published;
pub(super) mod scheme;
pub(super) mod slot_frames;
pub(super) mod slots;
#[cfg(feature = "published")]
mod span;
pub(super) mod state;
