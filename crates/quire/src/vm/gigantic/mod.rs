//! Folios of 1 GiB that are cleared piece by piece.

pub(super) mod cancel;
pub(super) mod clear;
pub(super) mod file;
pub(super) mod pool;
pub(super) mod state;
