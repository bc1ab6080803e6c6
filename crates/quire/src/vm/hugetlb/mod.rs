//! Mappings of huge pages of pools, whole or in parts, and the files behind them.

pub(super) mod ends;
pub(super) mod file;
pub(super) mod map;
pub(super) mod parts;
pub(super) mod reservations;
