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
/// At most so many windows, until two agree.
const WINDOWS: usize = 100;
/// Two windows agree if they differ by less than this part.
const AGREEMENT: u64 = 256;

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

impl Speeds {
    fn agrees_with(self, other: Self) -> bool {
        let agree = |a: u64, b: u64| a.abs_diff(b) < a / AGREEMENT;
        agree(self.counter, other.counter) && agree(self.apic_timer, other.apic_timer)
    }
}

/// A busy host pauses the machine for longer than a window, between any two of its reads. So a window counts only if
/// another one says the same.
fn by_pit() -> Speeds {
    apic::mask_timer(true);
    let mut windows = [Speeds { counter: 0, apic_timer: 0 }; WINDOWS];
    let mut speeds = None;
    for number in 0..WINDOWS {
        let window = window();
        if windows[..number].iter().any(|earlier| earlier.agrees_with(window)) {
            speeds = Some(window);
            break;
        }
        windows[number] = window;
    }
    apic::set_timer(0);
    apic::mask_timer(false);
    speeds.expect("the PIT, the counter and the APIC's timer agree about time")
}

fn window() -> Speeds {
    apic::set_timer(u32::MAX);
    start_pit();
    let start = next_change(pit());
    let mut pit_now = start.pit;
    while u64::from(start.pit.wrapping_sub(pit_now)) < WINDOW {
        pit_now = pit();
    }
    let end = next_change(pit_now);
    let ticks = u64::from(start.pit.wrapping_sub(end.pit)).max(1);
    let per_second = |counts: u64| (u128::from(counts) * u128::from(PIT_HZ) / u128::from(ticks)) as u64;
    Speeds {
        counter: per_second(end.counter - start.counter),
        apic_timer: per_second(u64::from(start.apic_timer.saturating_sub(end.apic_timer))),
    }
}

fn start_pit() {
    // SAFETY: X6: the PIT is the kernel's, and its interrupt is masked.
    unsafe {
        Port::<u8>::new(COMMAND).write(COUNT_DOWN);
        let mut data = Port::<u8>::new(COUNTER_0);
        data.write(0xff);
        data.write(0xff);
    }
}

fn pit() -> u16 {
    // SAFETY: X6: the PIT is the kernel's, and its interrupt is masked.
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
