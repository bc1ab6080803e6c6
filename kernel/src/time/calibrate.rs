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
/// Latches the status of counter 0, of which one bit is the output: high when the count has come to zero (mode 0).
const LATCH_STATUS: u8 = 0b1110_0010;
const OUTPUT: u8 = 1 << 7;
/// The shortest window of the measurement, in ticks: about a millisecond.
const WINDOW: u16 = 1193;
/// So many lengths are tried, each twice the one before; the PIT counts for 55 ms.
const LENGTHS: u32 = 6;
const _: () = assert!((WINDOW as u32) << (LENGTHS - 1) <= u16::MAX as u32);
/// At most so many windows, until one ends before the PIT does.
const WINDOWS: usize = 100;
/// So many readings are taken at each end of a window.
const READINGS: usize = 4;
/// The two readings of a window should take this part of it.
const ACCURACY: u64 = 256;
/// So many windows whose readings take more are tried again; then such a one counts. On some machines each access
/// of a port is emulated twice over.
const ROUGH_WINDOWS: usize = 3;
/// A window is waited for so many readings of the PIT.
const PATIENCE: u32 = 1_000_000;

/// Ticks in a second.
#[derive(Clone, Copy, Debug)]
pub struct Speeds {
    /// Of the processor's counter.
    pub counter: u64,
    /// Of the APIC's timer, after its divisor.
    pub apic_timer: u64,
}

/// The search for the speeds: done at once, or a window of the PIT that has begun.
pub enum Measurement {
    /// The processor said them.
    Known(Speeds),
    /// They are counted from this moment on.
    Since(Moment),
}

impl Measurement {
    /// Begins. Uses the PIT and the APIC's timer, whose interrupt stays off until [`Self::finish`].
    pub fn start() -> Self {
        by_cpuid().map_or_else(|| Self::Since(start_window()), Self::Known)
    }

    /// Ends. What the kernel did since [`Self::start`] was the measured time, so that mostly nothing is left to wait for.
    pub fn finish(self) -> Speeds {
        match self {
            Self::Known(speeds) => speeds,
            Self::Since(start) => by_pit(start),
        }
    }
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

/// What was read at one moment.
#[derive(Clone, Copy)]
pub struct Moment {
    pit: u16,
    counter: u64,
    apic_timer: u32,
    /// Ticks of the counter that passed during the reading. A busy host pauses the machine between any two reads.
    took: u64,
}

/// What a window says.
enum Window {
    Accurate(Speeds),
    /// Its readings took too long, at every length.
    Rough(Speeds),
    /// The PIT has counted to its end.
    Late,
    /// The PIT does not count.
    Stopped,
}

/// Speeds by a window that has begun, or if that says too little by others.
fn by_pit(mut start: Moment) -> Speeds {
    let (mut speeds, mut rough) = (None, 0);
    for _ in 0..WINDOWS {
        match end_window(start) {
            Window::Accurate(found) => {
                speeds = Some(found);
                break;
            }
            Window::Rough(found) => {
                (speeds, rough) = (Some(found), rough + 1);
                if rough == ROUGH_WINDOWS {
                    break;
                }
            }
            Window::Late => {}
            Window::Stopped => break,
        }
        start = start_window();
    }
    apic::set_timer(0);
    apic::mask_timer(false);
    speeds.expect("neither the processor nor a PIT says how fast time passes")
}

fn start_window() -> Moment {
    apic::mask_timer(true);
    apic::set_timer(u32::MAX);
    start_pit();
    Moment::read()
}

/// Waits until the window is long enough for what its two readings took: longer where the machine is slow, or was paused.
fn end_window(start: Moment) -> Window {
    let passed = |pit: u16| start.pit.wrapping_sub(pit);
    let mut rough = Window::Late;
    for doubled in 0..LENGTHS {
        if !(0..PATIENCE).any(|_| passed(pit()) >= WINDOW << doubled) {
            return Window::Stopped;
        }
        let end = Moment::read();
        if pit_has_ended() {
            return Window::Late;
        }
        let (ticks, counted) = (u64::from(passed(end.pit)), end.counter - start.counter);
        let per_second = |counts: u64| (u128::from(counts) * u128::from(PIT_HZ) / u128::from(ticks)) as u64;
        let timer = start.apic_timer.saturating_sub(end.apic_timer);
        let speeds = Speeds { counter: per_second(counted), apic_timer: per_second(u64::from(timer)) };
        if speeds.counter == 0 || speeds.apic_timer == 0 {
            continue;
        }
        if start.took + end.took <= counted / ACCURACY {
            return Window::Accurate(speeds);
        }
        rough = Window::Rough(speeds);
    }
    rough
}

impl Moment {
    /// The shortest of some readings. Another CPU cannot use the PIT, and a handler only makes a reading longer.
    fn read() -> Self {
        let readings = core::iter::repeat_with(Self::read_once).take(READINGS);
        readings.min_by_key(|moment| moment.took).expect("at least one")
    }

    fn read_once() -> Self {
        let before = counter();
        let (pit, apic_timer) = (pit(), apic::timer_counts());
        let took = counter() - before;
        Self { pit, counter: before + took / 2, apic_timer, took }
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

/// Whether the PIT has counted to zero: its count has begun anew. So it seems where there is no PIT.
fn pit_has_ended() -> bool {
    // SAFETY: X6: the PIT is the kernel's, and its interrupt is masked.
    unsafe {
        Port::<u8>::new(COMMAND).write(LATCH_STATUS);
        Port::<u8>::new(COUNTER_0).read() & OUTPUT != 0
    }
}
