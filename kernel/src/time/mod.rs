//! Time: the processor's counter, the clock of the machine, and one timer for each CPU.

mod calibrate;
mod rtc;
pub mod timer;

use core::arch::x86_64::_rdtsc;
use core::sync::atomic::{AtomicU64, Ordering};

pub use timer::wake_at;

/// Nanoseconds in a second.
pub const SECOND: u64 = 1_000_000_000;

/// The counter at the start of the kernel.
static START: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds per tick of the counter, times 2^32.
static SCALE: AtomicU64 = AtomicU64::new(0);
/// The time of day at the start of the kernel, in nanoseconds since 1970.
static REALTIME: AtomicU64 = AtomicU64::new(0);

/// Starts the clocks. They stand at zero until [`Starting::finish`], since it takes time to find how fast they run.
/// Interrupts are off.
pub fn start() -> Starting {
    START.store(counter(), Ordering::Relaxed);
    REALTIME.store(rtc::seconds().unwrap_or(0) * SECOND, Ordering::Relaxed);
    Starting(calibrate::Measurement::start())
}

/// Clocks that do not run yet. The APIC's timer cannot be set meanwhile.
#[must_use]
pub struct Starting(calibrate::Measurement);

impl Starting {
    /// Lets the clocks run.
    pub fn finish(self) {
        let speeds = self.0.finish();
        timer::set_frequency(speeds.apic_timer);
        let scale = ((u128::from(SECOND) << 32) / u128::from(speeds.counter)) as u64;
        SCALE.store(scale, Ordering::Relaxed);
    }
}

/// The processor's counter, the same on all CPUs.
#[inline]
fn counter() -> u64 {
    // SAFETY: X7: each 64-bit processor has it, and the kernel may read it.
    unsafe { _rdtsc() }
}

/// Nanoseconds since the clocks were started, never less than before.
pub fn now_ns() -> u64 {
    // Another CPU's counter may be a little behind the one that set the start.
    let ticks = counter().saturating_sub(START.load(Ordering::Relaxed));
    ((u128::from(ticks) * u128::from(SCALE.load(Ordering::Relaxed))) >> 32) as u64
}

/// Nanoseconds since 1970, in UTC.
pub fn realtime_ns() -> u64 {
    REALTIME.load(Ordering::Relaxed) + now_ns()
}
