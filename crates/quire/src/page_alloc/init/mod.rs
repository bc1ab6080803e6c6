//! Taking over a machine's memory, and adding and removing memory later.

mod boot_tables;
pub(super) mod config;
pub(super) mod frame_tables;
pub(super) mod hotplug;
pub(super) mod layout;
pub(super) mod start;
