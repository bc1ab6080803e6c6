//! What becomes of memory that went bad.

pub(super) mod lose;
