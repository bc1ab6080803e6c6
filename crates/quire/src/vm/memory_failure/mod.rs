//! Takes memory that went bad out of use.

pub(super) mod lose;
pub(super) mod soft;
