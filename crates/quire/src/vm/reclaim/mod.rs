//! What is given up when memory is short.

pub(super) mod shrink;
