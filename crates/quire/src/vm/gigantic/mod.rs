//! Folios of 1 GiB that are cleared piece by piece.

pub(super) mod forming;
