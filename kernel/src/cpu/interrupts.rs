//! Interrupts: what each vector means, and the handlers.
//!
//! A handler runs on top of the code that it interrupts, with interrupts off. It may allocate and wake tasks, and
//! never waits. An interrupt of a program returns from `enter_user` first, like a trap (`super::stubs`).

use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use quire::cpu::CpuId;

use super::area::MAX_CPUS;
use super::topology::{self, Line};
use super::{apic, area, io_apic, ipi};
use crate::task::sched;
use crate::time;

/// The first vector that is not the processor's own.
pub const FIRST: u64 = 32;
/// Devices' vectors begin here.
const FIRST_DEVICE: u8 = 0x30;
const DEVICES: usize = 16;
/// Another CPU has something for this one to run.
pub const RESCHEDULE: u8 = 0xf0;
/// Another CPU asks for a flush.
pub const FLUSH: u8 = 0xf1;
/// The timer of the local APIC.
pub const TIMER: u8 = 0xf2;
/// The APIC withdrew an interrupt; nothing is to be done. Its low bits are ones on old processors.
pub const SPURIOUS: u8 = 0xff;

/// The handlers of devices, by vector: functions without arguments.
static HANDLERS: [AtomicPtr<()>; DEVICES] = [const { AtomicPtr::new(core::ptr::null_mut()) }; DEVICES];
static USED: AtomicUsize = AtomicUsize::new(0);

/// What an interrupt is for.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// The device with this number.
    Device(usize),
    /// The local timer.
    Timer,
    /// A task waits for the CPU.
    Reschedule,
    /// Translations must go.
    Flush,
}

/// How often each CPU was interrupted: by devices, and by the three vectors from [`RESCHEDULE`] on.
static COUNTS: [[AtomicU64; COUNTED]; MAX_CPUS] =
    [const { [const { AtomicU64::new(0) }; COUNTED] }; MAX_CPUS];
const COUNTED: usize = DEVICES + 3;

/// The place of a vector of [`kinds`] among a CPU's counts.
fn place_of(vector: u8) -> usize {
    match vector.checked_sub(RESCHEDULE) {
        Some(own) => DEVICES + usize::from(own),
        None => usize::from(vector.wrapping_sub(FIRST_DEVICE)),
    }
}

/// The vectors in use, and what each is for.
pub fn kinds() -> impl Iterator<Item = (u8, Kind)> {
    let devices =
        (0..USED.load(Ordering::Relaxed).min(DEVICES)).map(|at| (FIRST_DEVICE + at as u8, Kind::Device(at)));
    devices.chain([(TIMER, Kind::Timer), (RESCHEDULE, Kind::Reschedule), (FLUSH, Kind::Flush)])
}

/// How often a CPU was interrupted by a vector of [`kinds`].
pub fn count(cpu: usize, vector: u8) -> u64 {
    COUNTS[cpu][place_of(vector)].load(Ordering::Relaxed)
}

/// Serves an interrupt. Interrupts are off.
pub fn handle(vector: u64) {
    let area = area::this();
    area.enter_interrupt();
    if let Some(count) = COUNTS[area::cpu_id().index()].get(place_of(vector as u8)) {
        count.fetch_add(1, Ordering::Relaxed);
    }
    match vector as u8 {
        FLUSH => ipi::serve_flushes(),
        TIMER => time::timer::expired(),
        RESCHEDULE => sched::others_wait(),
        SPURIOUS => {
            area.leave_interrupt();
            return;
        }
        vector => serve_device(vector),
    }
    apic::end_of_interrupt();
    area.leave_interrupt();
}

fn serve_device(vector: u8) {
    let Some(place) = HANDLERS.get(usize::from(vector.wrapping_sub(FIRST_DEVICE))) else { return };
    let handler = place.load(Ordering::Acquire);
    if handler.is_null() {
        return;
    }
    // SAFETY: X8: a word that is not null is a function that `connect` stored.
    let handler: fn() = unsafe { core::mem::transmute(handler) };
    handler();
}

/// Calls `handler` on the first CPU for each interrupt of an ISA device. Returns whether the machine can.
pub fn connect_isa(line: u8, handler: fn()) -> bool {
    connect(topology::get().isa_line(line), handler)
}

/// Calls `handler` on the first CPU for each interrupt of this line.
pub fn connect(line: Line, handler: fn()) -> bool {
    vector_of(handler).is_some_and(|vector| io_apic::route(line, vector, CpuId(0)))
}

/// A vector that calls `handler`, for a device that sends it by itself. `None`: all are taken.
pub fn vector_of(handler: fn()) -> Option<u8> {
    let index = USED.fetch_add(1, Ordering::Relaxed);
    HANDLERS.get(index)?.store(handler as *mut (), Ordering::Release);
    Some(FIRST_DEVICE + index as u8)
}
