//! The reverse map: from pages of files and from anonymous frames to the address spaces that map them.

pub(super) mod block_leaves;
pub(super) mod reverse;
