//! The block store: zones, whole blocks in pools, blocks in small pieces in shards.

pub(super) mod capacity;
pub(super) mod isolated;
pub(super) mod merge;
pub(super) mod pool;
pub(super) mod runs;
pub(super) mod search;
pub(super) mod shard;
pub(super) mod small;
pub(super) mod whole;
pub(super) mod zero_ahead;
pub(super) mod zeroed;
pub(super) mod zone;
