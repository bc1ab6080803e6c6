//! The local APIC: interrupts between CPUs, and a timer for each (SDM volume 3, chapter 11).
//!
//! The registers are used as memory (xAPIC), since QEMU's emulation has nothing else. The crate `x2apic` is
//! not used: in this mode it takes and gives APIC ids shifted by 24 bits, and its start-up unmasks the local
//! pins. What a shootdown needs is `quire_interop`'s.

use core::sync::atomic::{AtomicPtr, Ordering};

use quire::addr::PhysAddr;
pub use quire_interop::shootdown::Delivery;
use quire_interop::shootdown::LocalApic;
use x86_64::instructions::interrupts::without_interrupts;
use x86_64::registers::model_specific::ApicBase;

use super::interrupts::{SPURIOUS, TIMER};
use crate::memory::kernel_map;

/// The size of the registers.
const BYTES: u64 = 0x400;

/// Offsets of registers (SDM volume 3, table 11-1).
mod register {
    pub const ID: usize = 0x20;
    pub const TASK_PRIORITY: usize = 0x80;
    pub const SPURIOUS: usize = 0xf0;
    pub const TIMER: usize = 0x320;
    pub const LINT0: usize = 0x350;
    pub const LINT1: usize = 0x360;
    pub const ERROR: usize = 0x370;
    pub const TIMER_INITIAL: usize = 0x380;
    pub const TIMER_CURRENT: usize = 0x390;
    pub const TIMER_DIVIDE: usize = 0x3e0;
}

const ENABLE: u32 = 1 << 8;
const MASKED: u32 = 1 << 16;

/// The timer counts every 16th tick of its clock, so that 32 bits last for minutes.
pub const TIMER_DIVISOR: u64 = 16;
const DIVIDE_BY_16: u32 = 3;

static REGISTERS: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

/// Maps the registers, at the same address for all CPUs.
pub fn map(at: PhysAddr) {
    let registers = kernel_map::map_device(at, BYTES).expect("tables of the boot pool for the APIC");
    REGISTERS.store(registers, Ordering::Relaxed);
}

/// Whether [`map`] was called.
pub fn is_mapped() -> bool {
    !REGISTERS.load(Ordering::Relaxed).is_null()
}

fn place(offset: usize) -> *mut u32 {
    REGISTERS.load(Ordering::Relaxed).wrapping_add(offset).cast()
}

fn read(offset: usize) -> u32 {
    debug_assert!(is_mapped());
    // SAFETY: X5, X6: the registers are mapped for ever, and these offsets read without effect.
    unsafe { place(offset).read_volatile() }
}

fn write(offset: usize, value: u32) {
    debug_assert!(is_mapped());
    // SAFETY: X5, X6: the registers are mapped for ever. They touch no memory; an interrupt does what its
    // handler does.
    unsafe { place(offset).write_volatile(value) };
}

/// The running CPU's APIC id, before anything is mapped.
pub fn id_by_cpuid() -> u32 {
    core::arch::x86_64::__cpuid(1).ebx >> 24
}

/// The running CPU's APIC id.
pub fn id() -> u32 {
    read(register::ID) >> 24
}

/// Prepares the running CPU's APIC. Interrupts are off.
pub fn enable() {
    debug_assert!(
        ApicBase::read().1.contains(x86_64::registers::model_specific::ApicBaseFlags::LAPIC_ENABLE)
    );
    for pin in [register::LINT0, register::ERROR] {
        write(pin, MASKED);
    }
    // The button for a machine that hangs, `nmi` in QEMU's monitor, is connected here.
    write(register::LINT1, Delivery::Nmi.command());
    write(register::TASK_PRIORITY, 0);
    write(register::TIMER_DIVIDE, DIVIDE_BY_16);
    write(register::TIMER_INITIAL, 0);
    write(register::TIMER, u32::from(TIMER));
    write(register::SPURIOUS, ENABLE | u32::from(SPURIOUS));
}

/// The part of the APIC that sends interrupts.
fn local() -> LocalApic {
    debug_assert!(is_mapped());
    // SAFETY: X5, X6, P3: the registers are mapped for ever.
    unsafe { LocalApic::in_memory(REGISTERS.load(Ordering::Relaxed)) }
}

/// Tells the APIC that the interrupt is served.
pub fn end_of_interrupt() {
    local().end_of_interrupt();
}

/// Sends an interrupt to the CPU with this APIC id. Stores made before are visible to its handler.
pub fn send(apic_id: u32, delivery: Delivery) {
    // A handler between the two halves of a command would send its own.
    without_interrupts(|| local().send([apic_id], delivery));
}

/// Resets the CPU with this APIC id and starts it in this page, below 1 MiB.
///
/// # Safety
/// As for [`LocalApic::start`].
pub unsafe fn start(apic_id: u32, page: u8) {
    // SAFETY: P3: as the caller promises.
    without_interrupts(|| unsafe { local().start(apic_id, page) });
}

/// Lets the timer interrupt this CPU after so many counts; 0 stops it.
pub fn set_timer(counts: u32) {
    write(register::TIMER_INITIAL, counts);
}

/// What is left of the timer's counts.
pub fn timer_counts() -> u32 {
    read(register::TIMER_CURRENT)
}

/// Lets the timer count without interrupting, or interrupt.
pub fn mask_timer(masked: bool) {
    write(register::TIMER, u32::from(TIMER) | if masked { MASKED } else { 0 });
}
