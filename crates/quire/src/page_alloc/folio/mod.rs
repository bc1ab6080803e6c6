//! Folios in use that change as a whole: splitting, reserved blocks, frames that go bad.

pub(super) mod bad;
pub(super) mod deferred;
pub(super) mod reserve;
pub(super) mod split;
