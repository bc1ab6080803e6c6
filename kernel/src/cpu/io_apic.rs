//! The I/O APICs: which interrupt of a device goes to which CPU, by which vector.

use core::sync::atomic::{AtomicPtr, Ordering};

use quire::cpu::CpuId;

use super::topology::{self, IoApicPlace, Line};
use crate::memory::kernel_map;
use crate::sync::Mutex;

const BYTES: u64 = 0x20;
/// The register that says which register [`WINDOW`] is.
const SELECT: usize = 0;
const WINDOW: usize = 0x10;

const VERSION: u32 = 1;
const FIRST_ENTRY: u32 = 0x10;

const ACTIVE_LOW: u32 = 1 << 13;
const LEVEL: u32 = 1 << 15;
const MASKED: u32 = 1 << 16;

/// The registers of one I/O APIC. Two are accessed in turn, so one task does it at a time.
struct IoApic {
    registers: AtomicPtr<u8>,
    first: u32,
}

impl IoApic {
    fn at(place: IoApicPlace) -> Self {
        let registers = kernel_map::map_device(place.registers, BYTES).expect("a table for the I/O APIC");
        Self { registers: AtomicPtr::new(registers), first: place.first }
    }

    fn place(&self, offset: usize) -> *mut u32 {
        self.registers.load(Ordering::Relaxed).wrapping_add(offset).cast()
    }

    fn read(&self, register: u32) -> u32 {
        // SAFETY: X5, X6: the registers are mapped for ever, and the lock of the table of APICs is held.
        unsafe {
            self.place(SELECT).write_volatile(register);
            self.place(WINDOW).read_volatile()
        }
    }

    fn write(&self, register: u32, value: u32) {
        // SAFETY: X5, X6: the registers are mapped for ever, and the lock of the table of APICs is held.
        unsafe {
            self.place(SELECT).write_volatile(register);
            self.place(WINDOW).write_volatile(value);
        }
    }

    /// How many interrupts it serves; 0 where there is no I/O APIC.
    fn entries(&self) -> u32 {
        match self.read(VERSION) {
            0 | u32::MAX => 0,
            version => (version >> 16 & 0xff) + 1,
        }
    }
}

static IO_APICS: Mutex<()> = Mutex::new(());

/// Sends an interrupt line to a CPU, by a vector. Returns whether an I/O APIC serves the line.
pub fn route(line: Line, vector: u8, cpu: CpuId) -> bool {
    let _one_at_a_time = IO_APICS.lock();
    let apic_id = topology::get().apic_ids()[cpu.index()];
    for &place in topology::get().io_apics() {
        let apic = IoApic::at(place);
        let Some(entry) = line.number.checked_sub(apic.first).filter(|&entry| entry < apic.entries()) else {
            continue;
        };
        let low = FIRST_ENTRY + 2 * entry;
        let polarity = if line.active_low { ACTIVE_LOW } else { 0 };
        let trigger = if line.level { LEVEL } else { 0 };
        apic.write(low, MASKED);
        apic.write(low + 1, apic_id << 24);
        apic.write(low, u32::from(vector) | polarity | trigger);
        return true;
    }
    false
}
