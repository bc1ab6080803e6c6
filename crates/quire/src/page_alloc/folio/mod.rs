//! Folios in use: owned values, what stands in them, splitting, pools' pages, bad frames.

pub(super) mod bad;
pub(super) mod contents;
pub(super) mod deferred;
pub(super) mod deferred_list;
pub(super) mod from_raw;
pub(super) mod huge;
pub(super) mod movable;
pub(super) mod owned;
pub(super) mod remainders;
pub(super) mod reservation;
pub(super) mod split;
