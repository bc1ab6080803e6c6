//! Allocations that fail on purpose (`fail-nth=N` on the kernel's command line), for tests of what the kernel and the
//! library do then.
//!
//! While a program runs, one of each N requests for frames on each CPU fails as if memory were out: for pages of
//! programs, page tables, slabs of the kernel's heap. Which one of the N is drawn: else a step that needs a certain
//! number of requests would fail whenever it is tried again.
//!
//! With `fail-large=BYTES` the kernel's heap refuses what is larger, as if no frames were in a row.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::boot::command;
use crate::cpu::area::{self, MAX_CPUS};

/// One of so many requests fails; 0 while none does.
static EACH: AtomicU64 = AtomicU64::new(0);
/// The requests of each CPU.
static ASKED: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];

/// The largest allocation of the kernel's heap that does not fail.
static LARGEST: AtomicUsize = AtomicUsize::new(usize::MAX);

/// How many requests are made now that must not fail on purpose.
static SPARED: AtomicUsize = AtomicUsize::new(0);

/// From here on requests fail, if the command line says so.
pub fn start() {
    let each = command::option("fail-nth").and_then(|value| value.parse().ok()).unwrap_or(0);
    EACH.store(each, Ordering::Relaxed);
    let largest = command::option("fail-large").and_then(|value| value.parse().ok()).unwrap_or(usize::MAX);
    LARGEST.store(largest, Ordering::Relaxed);
}

/// From here on none does. Returns about how many did.
pub fn stop() -> u64 {
    LARGEST.store(usize::MAX, Ordering::Relaxed);
    let asked: u64 = ASKED.iter().map(|asked| asked.load(Ordering::Relaxed)).sum();
    asked.checked_div(EACH.swap(0, Ordering::Relaxed)).unwrap_or(0)
}

/// Whether an allocation of the kernel's heap fails, which is larger than a frame.
#[cold]
pub fn fails_large(bytes: usize) -> bool {
    bytes > LARGEST.load(Ordering::Relaxed)
}

/// Whether the request that is made now fails.
#[inline]
pub fn fails() -> bool {
    let each = EACH.load(Ordering::Relaxed);
    each != 0 && is_drawn(each)
}

/// Makes a request that the reserve serves: none fails on purpose meanwhile.
pub fn spared<R>(request: impl FnOnce() -> R) -> R {
    SPARED.fetch_add(1, Ordering::Relaxed);
    let result = request();
    SPARED.fetch_sub(1, Ordering::Relaxed);
    result
}

#[cold]
fn is_drawn(each: u64) -> bool {
    if SPARED.load(Ordering::Relaxed) > 0 {
        return false;
    }
    let asked = ASKED[area::cpu_id().index()].fetch_add(1, Ordering::Relaxed);
    // A multiplication by an odd number moves what differs to the upper bits.
    let drawn = (asked / each + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
    asked % each == drawn % each
}
