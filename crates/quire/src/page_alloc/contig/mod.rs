//! Ranges of whole blocks in a row.

pub(super) mod blocks;
mod compact;
pub(super) mod exact;
pub(super) mod isolate;
pub(super) mod search;
