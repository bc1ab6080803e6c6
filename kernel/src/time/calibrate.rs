//! How fast the counter and the APIC's timer run: by the processor's own word, or else against the PIT.

use core::arch::x86_64::__cpuid;

use x86_64::instructions::port::Port;

use super::counter;
use crate::cpu::apic::{self, TIMER_DIVISOR};

/// Ticks of the programmable interval timer (8254) in a second.
const PIT_HZ: u64 = 1_193_182;
/// Its first counter and the command port.
const COUNTER_0: u16 = 0x40;
const COMMAND: u16 = 0x43;
/// Counter 0 counts down once from a value of two bytes (mode 0).
const COUNT_DOWN: u8 = 0b0011_0000;
/// Latches counter 0.
const LATCH: u8 = 0;
/// A window of the measurement, in ticks: about a millisecond.
const WINDOW: u64 = 1193;
/// The median of so many windows counts, so that one in which the host paused does not.
const WINDOWS: usize = 3;

/// Ticks in a second.
#[derive(Clone, Copy, Debug)]
pub struct Speeds {
    /// Of the processor's counter.
    pub counter: u64,
    /// Of the APIC's timer, after its divisor.
    pub apic_timer: u64,
}

/// Finds the speeds. Uses the APIC's timer and the PIT, and interrupts are off.
pub fn measure() -> Speeds {
    by_cpuid().unwrap_or_else(by_pit)
}

/// CPUID 15H says how many ticks the counter makes for some of the crystal's, and the crystal's frequency (SDM
/// volume 3, 18.7.3). The APIC's timer runs with the crystal.
fn by_cpuid() -> Option<Speeds> {
    if __cpuid(0).eax < 0x15 {
        return None;
    }
    let leaf = __cpuid(0x15);
    let crystal = u64::from(leaf.ecx);
    let counter = (crystal * u64::from(leaf.ebx)).checked_div(u64::from(leaf.eax))?;
    let speeds = Speeds { counter, apic_timer: crystal / TIMER_DIVISOR };
    (speeds.counter > 0 && speeds.apic_timer > 0).then_some(speeds)
}

/// What was read at one moment: the moment at which the PIT's count changed.
#[derive(Clone, Copy)]
struct Moment {
    pit: u16,
    counter: u64,
    apic_timer: u32,
}

fn by_pit() -> Speeds {
    apic::mask_timer(true);
    let mut counter_hz = [0; WINDOWS];
    let mut timer_hz = [0; WINDOWS];
    for window in 0..WINDOWS {
        apic::set_timer(u32::MAX);
        start_pit();
        let start = next_change(pit());
        let mut pit_now = start.pit;
        while u64::from(start.pit.wrapping_sub(pit_now)) < WINDOW {
            pit_now = pit();
        }
        let end = next_change(pit_now);
        let ticks = u64::from(start.pit.wrapping_sub(end.pit));
        counter_hz[window] = (end.counter - start.counter) * PIT_HZ / ticks;
        timer_hz[window] = u64::from(start.apic_timer - end.apic_timer) * PIT_HZ / ticks;
    }
    apic::set_timer(0);
    apic::mask_timer(false);
    counter_hz.sort_unstable();
    timer_hz.sort_unstable();
    Speeds { counter: counter_hz[WINDOWS / 2], apic_timer: timer_hz[WINDOWS / 2].max(1) }
}

fn start_pit() {
    // SAFETY: the PIT is the kernel's, and its interrupt is masked.
    unsafe {
        Port::<u8>::new(COMMAND).write(COUNT_DOWN);
        let mut data = Port::<u8>::new(COUNTER_0);
        data.write(0xff);
        data.write(0xff);
    }
}

fn pit() -> u16 {
    // SAFETY: as in `start_pit`.
    unsafe {
        Port::<u8>::new(COMMAND).write(LATCH);
        let mut data = Port::<u8>::new(COUNTER_0);
        u16::from(data.read()) | u16::from(data.read()) << 8
    }
}

/// Waits until the PIT's count is no longer `seen`. Where there is no PIT this ends too.
fn next_change(seen: u16) -> Moment {
    const PATIENCE: u32 = 1_000_000;
    for _ in 0..PATIENCE {
        let now = pit();
        if now != seen {
            return Moment { pit: now, counter: counter(), apic_timer: apic::timer_counts() };
        }
    }
    panic!("neither the processor nor a PIT says how fast time passes");
}
