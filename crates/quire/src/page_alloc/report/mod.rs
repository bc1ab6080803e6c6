//! Reports how memory is used, and checks the invariants.

pub(super) mod free_groups;
pub(super) mod info;
pub(super) mod validate;
