//! Interrupts between CPUs by the local APIC (Intel SDM volume 3A, chapter 11).

#![allow(unsafe_code)]

use core::arch::asm;
use core::sync::atomic::{Ordering, fence};

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

/// The commands that reset a CPU, and start it in the page that is added.
const INIT: u32 = 5 << 8;
const START_UP: u32 = 6 << 8;

/// How an interrupt is delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery {
    /// By a vector.
    Vector(u8),
    /// Not maskable, vector 2.
    Nmi,
}

impl Delivery {
    /// The bits of a command, or of an entry of the local vector table.
    pub const fn command(self) -> u32 {
        match self {
            Self::Vector(vector) => vector as u32,
            Self::Nmi => 4 << 8,
        }
    }
}

/// The running CPU's local APIC, in one of its two modes. A copy of the value works on every CPU in that
/// mode.
#[derive(Clone, Copy, Debug)]
pub struct LocalApic(Mode);

#[derive(Clone, Copy, Debug)]
enum Mode {
    Memory(*mut u8),
    Registers,
}

// SAFETY: P3: the registers behind the address are those of the CPU that uses them, on each CPU.
unsafe impl Send for LocalApic {}
// SAFETY: P3: the same; the value itself never changes.
unsafe impl Sync for LocalApic {}

impl LocalApic {
    /// An APIC whose registers are mapped as memory (xAPIC).
    ///
    /// # Safety
    /// The registers are mapped there while the value is used, uncached. Each CPU has handlers for the
    /// interrupts that it is sent.
    pub const unsafe fn in_memory(registers: *mut u8) -> Self {
        Self(Mode::Memory(registers))
    }

    /// An APIC whose registers are the processor's (x2APIC).
    ///
    /// # Safety
    /// All code that uses the value runs in ring 0, on CPUs in this mode. Each CPU has handlers for the
    /// interrupts that it is sent.
    pub const unsafe fn x2apic() -> Self {
        Self(Mode::Registers)
    }

    /// Sends an interrupt to the CPUs with these APIC ids. Stores made before are visible to its handlers.
    ///
    /// Precondition for registers in memory: ids below 256, and interrupts are off, since a command has two
    /// halves: a handler that sends an interrupt between them sends this one to its own target. A handler of
    /// interrupts that cannot be off sends none. Waits until the APIC has taken the command before.
    pub fn send(self, apic_ids: impl IntoIterator<Item = u32>, delivery: Delivery) {
        self.command(apic_ids, delivery.command());
    }

    /// Resets the CPU with this APIC id, and starts it in a page below 1 MiB (`0x8` for that at `0x8000`).
    /// Stores made before are visible to it. Precondition as for [`Self::send`].
    ///
    /// Sends INIT, and one START-UP right after it. Intel's manual waits 10 ms after INIT, and sends START-UP
    /// again after 200 us. Processors since Intel's family 6 and AMD's family 15 need no wait after INIT
    /// (Linux: `init_udelay`). One that needs these waits does not start.
    ///
    /// # Safety
    /// Nothing relies on what the CPU did before. The page has the code that it is to execute, in real mode.
    pub unsafe fn start(self, apic_id: u32, page: u8) {
        self.command([apic_id], INIT);
        self.command([apic_id], START_UP | u32::from(page));
    }

    fn command(self, apic_ids: impl IntoIterator<Item = u32>, command: u32) {
        let command = command | ASSERT;
        // For the compiler, which may move other stores behind volatile ones.
        fence(Ordering::Release);
        match self.0 {
            // For the processor, a store to uncached memory waits for those before it.
            Mode::Memory(registers) => apic_ids.into_iter().for_each(|id| {
                debug_assert!(id <= 0xff, "APIC id {id} needs an x2APIC");
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
