//! Mappings of huge pages of pools, the files behind them, and parts of such pages that are mapped by themselves.

pub(super) mod file;
pub(super) mod mapping;
pub(super) mod parts;
