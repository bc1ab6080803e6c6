//! Per-CPU lists: the common path, their slow path, and how they are emptied.

pub(super) mod common_path;
pub(super) mod drain;
pub(super) mod events;
#[cfg(feature = "published")]
pub(super) mod guarded;
pub(super) mod level;
pub(super) mod list;
pub(super) mod list_access;
pub(super) mod lists;
pub(super) mod parked;
pub(super) mod sorter;
pub(super) mod sorting;
