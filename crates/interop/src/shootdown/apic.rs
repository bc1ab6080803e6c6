//! Interrupts between CPUs by the local APIC (Intel SDM volume 3A, chapter 11).

#![allow(unsafe_code)]

use core::arch::asm;

/// Offsets of registers that are mapped as memory.
const END_OF_INTERRUPT: usize = 0xb0;
const COMMAND_LOW: usize = 0x300;
const COMMAND_HIGH: usize = 0x310;
/// A command that has not been sent yet.
const PENDING: u32 = 1 << 12;
const ASSERT: u32 = 1 << 14;

/// Numbers of the registers of an x2APIC.
const MSR_END_OF_INTERRUPT: u32 = 0x80b;
const MSR_COMMAND: u32 = 0x830;

/// How an interrupt is delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery {
    /// By a vector.
    Vector(u8),
    /// Not maskable, vector 2.
    Nmi,
    /// Resets the CPU.
    Init,
    /// Starts the CPU in a page below 1 MiB.
    StartUp(u8),
}

impl Delivery {
    /// The bits of a command, or of an entry of the local vector table.
    pub const fn command(self) -> u32 {
        match self {
            Self::Vector(vector) => vector as u32,
            Self::Nmi => 4 << 8,
            Self::Init => 5 << 8,
            Self::StartUp(page) => 6 << 8 | page as u32,
        }
    }
}

/// The running CPU's local APIC, in one of its two modes. A copy of the value works on every CPU in that mode.
#[derive(Clone, Copy, Debug)]
pub struct LocalApic(Mode);

#[derive(Clone, Copy, Debug)]
enum Mode {
    Memory(*mut u8),
    Registers,
}

impl LocalApic {
    /// An APIC whose registers are mapped as memory (xAPIC).
    ///
    /// # Safety
    /// The registers are mapped there while the value is used, uncached. What an interrupt does is its handler's matter.
    pub const unsafe fn in_memory(registers: *mut u8) -> Self {
        Self(Mode::Memory(registers))
    }

    /// An APIC whose registers are the processor's (x2APIC).
    ///
    /// # Safety
    /// All code that uses the value runs in ring 0, on CPUs in this mode.
    pub const unsafe fn x2apic() -> Self {
        Self(Mode::Registers)
    }

    /// Sends an interrupt to the CPUs with these APIC ids. Stores made before are visible to its handlers.
    ///
    /// Precondition for registers in memory: no handler on this CPU sends one meanwhile. Waits until the APIC has taken
    /// the command before.
    pub fn send(self, apic_ids: impl IntoIterator<Item = u32>, delivery: Delivery) {
        let command = delivery.command() | ASSERT;
        match self.0 {
            // A store to uncached memory waits for those before it.
            Mode::Memory(registers) => apic_ids.into_iter().for_each(|id| {
                while read(registers, COMMAND_LOW) & PENDING != 0 {
                    core::hint::spin_loop();
                }
                write(registers, COMMAND_HIGH, id << 24);
                write(registers, COMMAND_LOW, command);
            }),
            Mode::Registers => {
                // SAFETY: P3: two fences. A write to one of these registers waits for no store.
                unsafe { asm!("mfence", "lfence", options(nostack, preserves_flags)) };
                apic_ids.into_iter().for_each(|id| write_msr(MSR_COMMAND, command, id));
            }
        }
    }

    /// Tells the APIC that the interrupt is served.
    pub fn end_of_interrupt(self) {
        match self.0 {
            Mode::Memory(registers) => write(registers, END_OF_INTERRUPT, 0),
            Mode::Registers => write_msr(MSR_END_OF_INTERRUPT, 0, 0),
        }
    }
}

fn read(registers: *mut u8, offset: usize) -> u32 {
    // SAFETY: P3: mapped by the contract of `in_memory`; the register is read without effect.
    unsafe { registers.wrapping_add(offset).cast::<u32>().read_volatile() }
}

fn write(registers: *mut u8, offset: usize, value: u32) {
    // SAFETY: P3: mapped by the contract of `in_memory`; the register touches no memory.
    unsafe { registers.wrapping_add(offset).cast::<u32>().write_volatile(value) };
}

fn write_msr(register: u32, low: u32, high: u32) {
    // SAFETY: P3: ring 0 in this mode by the contract of `x2apic`; the register touches no memory.
    unsafe {
        asm!("wrmsr", in("ecx") register, in("eax") low, in("edx") high, options(nostack, preserves_flags))
    };
}
