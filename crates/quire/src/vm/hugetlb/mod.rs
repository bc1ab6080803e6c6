//! Mappings of huge pages of pools, the files behind them, and parts of such pages that are mapped by
//! themselves.

pub(super) mod ends;
pub(super) mod file;
pub(super) mod map;
pub(super) mod parts;
pub(super) mod reservations;
