//! Moves folios to other frames, wherever they are mapped.

pub(super) mod cached;
pub(super) mod huge;
pub(super) mod relocate;
