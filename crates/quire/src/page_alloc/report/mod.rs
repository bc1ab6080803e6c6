//! What the allocator says of itself.

pub(super) mod info;
pub(super) mod validate;
