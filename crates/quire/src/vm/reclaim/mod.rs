//! Frees memory when it is short.

pub(super) mod shrink;
