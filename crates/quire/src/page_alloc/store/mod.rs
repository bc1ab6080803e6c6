//! The block store: zones, whole blocks in pools, blocks in small pieces in shards.
//!
//! [`Store`] allocates and frees memory under locks, and knows nothing of per-CPU lists or of uses of memory.

pub(super) mod areas;
pub(super) mod bad;
pub(super) mod capacity;
pub(super) mod count_slots;
pub(super) mod huge_zeroes;
pub(super) mod isolate;
pub(super) mod isolated;
pub(super) mod marks;
pub(super) mod merge;
pub(super) mod nodes;
pub(super) mod pool;
pub(super) mod reservation;
pub(super) mod runs;
pub(super) mod search;
pub(super) mod shard;
pub(super) mod slots;
pub(super) mod small;
pub(super) mod sorter;
pub(super) mod sorting;
pub(super) mod steer;
pub(super) mod tables;
pub(super) mod whole;
pub(super) mod zero_ahead;
pub(super) mod zeroed;
pub(super) mod zone;

use crate::memmap::BootSlice;
use crate::page_alloc::frames::Frames;
use crate::page_alloc::init::config::Zeroes;
use crate::page_alloc::store::slots::CountRoom;
use crate::page_alloc::store::zone::Zone;
use crate::platform::FramePlatform;
use crate::sync::SpinLock;

/// The free memory of one machine.
pub struct Store<'p, P: FramePlatform> {
    pub(in crate::page_alloc) frames: Frames<'p, P>,
    pub(in crate::page_alloc) zones: BootSlice<Zone>,
    pub(in crate::page_alloc) group_by_mobility: bool,
    pub(in crate::page_alloc) zeroes: Zeroes,
    /// Slots for the map counts of folios of whole blocks that are mapped in pieces.
    pub(in crate::page_alloc) count_room: SpinLock<CountRoom>,
}
