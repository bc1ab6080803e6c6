//! Taking over a machine's memory, and adding and removing memory later.

pub(super) mod config;
pub(super) mod hotplug;
pub(super) mod layout;
pub(super) mod start;
pub(super) mod tables;
