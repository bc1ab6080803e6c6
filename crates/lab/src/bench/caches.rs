//! With which contents of the processor's caches a verb on populated memory is measured.
//!
//! Populating leaves other things in them on Linux, which has cleared and written the memory, than in the arms
//! of Quire, which do not touch its bytes. So all arms fill them with other memory before the call, and goals
//! are about these cases. Some are also measured with caches as populating left them, since only such cases
//! have their instructions counted.

use super::memory::Memory;

/// Those that are also measured with caches as populating left them.
const WARM: [&str; 5] = ["4KiB", "4KiB/shuffled", "64KiB", "2MiB-pte", "2MiB-pmd"];

/// What goes for every experiment that uses this.
pub const NOTE: &str = "`/cold`: other memory was written right before the call, by every arm, as much as the \
     last-level cache holds and at least 128 MiB. Goals are about these cases. In the others the caches have what \
     populating left in them: on Linux the last of 1 GiB that was cleared and written, in the arms of Quire page tables \
     and counts, since they populate memory without touching its bytes.";

/// The memories, with caches that hold other memory.
pub fn cold(memories: impl Iterator<Item = Memory>) -> impl Iterator<Item = Memory> {
    memories.map(|memory| Memory { cold: true, ..memory })
}

/// The same, and then some with caches as populating left them.
pub fn cold_and_warm(memories: &[Memory]) -> impl Iterator<Item = Memory> {
    let warm = |memory: &&Memory| WARM.contains(&memory.name().as_str());
    cold(memories.iter().copied()).chain(memories.iter().filter(warm).copied())
}
