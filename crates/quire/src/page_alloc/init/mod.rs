//! Taking over a machine's memory.

pub(super) mod config;
pub(super) mod hotplug;
pub(super) mod layout;
pub(super) mod start;
