//! The firmware's description of the machine: which CPUs, interrupt controllers and memory nodes there are.
//!
//! | table | what it says | where (ACPI 6.5) |
//! |---|---|---|
//! | MADT | local APIC of each CPU, I/O APICs, where ISA interrupts arrive | 5.2.12 |
//! | SRAT | node of each CPU and of each range of memory | 5.2.16 |
//! | SLIT | distances between nodes | 5.2.17 |
//!
//! The crate `acpi` finds and checks tables, and knows the entries of the MADT. Those of the SRAT are not among what
//! its stable version reads.

use core::ptr::NonNull;

use acpi::madt::{Madt, MadtEntry};
use acpi::sdt::{SdtHeader, Signature};
use acpi::{AcpiHandler, AcpiTable, AcpiTables, PhysicalMapping};
use quire::addr::PhysAddr;

use crate::cpu::topology::{NodeMemory, Topology};
use crate::device::serial::log;
use crate::memory::kernel_map;

/// Maps tables where the firmware left them. They stay mapped.
#[derive(Clone)]
struct Mapper;

impl AcpiHandler for Mapper {
    unsafe fn map_physical_region<T>(&self, start: usize, bytes: usize) -> PhysicalMapping<Self, T> {
        let place = kernel_map::map_firmware(PhysAddr(start as u64), bytes as u64);
        let place = place.expect("tables of the boot pool for the firmware's tables");
        let place = NonNull::new(place.cast()).expect("an address of the upper half");
        // SAFETY: X5: `map_firmware` mapped the range there, for ever.
        unsafe { PhysicalMapping::new(start, place, bytes, bytes, Self) }
    }

    fn unmap_physical_region<T>(_: &PhysicalMapping<Self, T>) {}
}

macro_rules! tables {
    ($($(#[$doc:meta])* $name:ident = $signature:ident;)*) => {$(
        $(#[$doc])*
        #[repr(transparent)]
        struct $name(SdtHeader);

        // SAFETY: X1: each table of the firmware begins with this header.
        unsafe impl AcpiTable for $name {
            const SIGNATURE: Signature = Signature::$signature;

            fn header(&self) -> &SdtHeader {
                &self.0
            }
        }
    )*};
}

tables! {
    /// System resource affinity table.
    Srat = SRAT;
    /// System locality information table.
    Slit = SLIT;
}

/// Reads what the tables say into `topology`, which describes a machine without them.
///
/// # Safety
/// The firmware's tables are at this address, as the loader said.
pub unsafe fn read(rsdp: PhysAddr, topology: &mut Topology) {
    // SAFETY: X1: the caller promises that the firmware's tables are there.
    let tables = match unsafe { AcpiTables::from_rsdp(Mapper, rsdp.0 as usize) } {
        Ok(tables) => tables,
        Err(error) => return log!("ACPI tables cannot be used, so one CPU runs: {error:?}"),
    };
    if let Ok(madt) = tables.find_table::<Madt>() {
        read_madt(&madt, topology);
    }
    if let Ok(srat) = tables.find_table::<Srat>() {
        read_srat(contents(&srat), topology);
    }
    if let Ok(slit) = tables.find_table::<Slit>() {
        read_slit(contents(&slit), topology);
    }
}

/// The bytes of a table after its header.
fn contents<T: AcpiTable>(table: &PhysicalMapping<Mapper, T>) -> &[u8] {
    let all = table.virtual_start().as_ptr().cast::<u8>();
    // SAFETY: X5: the mapping has so many bytes, which begin with the header.
    let all = unsafe { core::slice::from_raw_parts(all, table.region_length()) };
    &all[size_of::<SdtHeader>()..]
}

fn read_madt(madt: &PhysicalMapping<Mapper, Madt>, topology: &mut Topology) {
    topology.local_apic = PhysAddr(u64::from(madt.get().local_apic_address));
    for entry in madt.get().entries() {
        match entry {
            // A CPU that is not enabled may be added while the machine runs, which this kernel does not support.
            MadtEntry::LocalApic(cpu) if cpu.flags & 1 != 0 => topology.add_cpu(u32::from(cpu.apic_id)),
            MadtEntry::LocalX2Apic(cpu) if cpu.flags & 1 != 0 => topology.add_cpu(cpu.x2apic_id),
            MadtEntry::LocalApicAddressOverride(entry) => {
                topology.local_apic = PhysAddr(entry.local_apic_address);
            }
            MadtEntry::IoApic(io) => {
                topology
                    .add_io_apic(PhysAddr(u64::from(io.io_apic_address)), io.global_system_interrupt_base);
            }
            MadtEntry::InterruptSourceOverride(line) => {
                topology.override_line(line.irq, line.global_system_interrupt, line.flags);
            }
            _ => {}
        }
    }
}

/// Entries begin with type and length. Bit 0 of the flags says that an entry is valid.
fn read_srat(contents: &[u8], topology: &mut Topology) {
    let mut rest = contents.get(12..).unwrap_or_default();
    while let [kind, length, ..] = *rest {
        let Some((entry, after)) = rest.split_at_checked(usize::from(length)) else { return };
        match (kind, length) {
            (0, 16..) if entry[4] & 1 != 0 => {
                let domain = u32::from_le_bytes([entry[2], entry[9], entry[10], entry[11]]);
                topology.set_cpu_domain(u32::from(entry[3]), domain);
            }
            (1, 40..) if entry[28] & 1 != 0 => {
                let word = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().expect("8 bytes"));
                let domain = u32::from_le_bytes(entry[2..6].try_into().expect("4 bytes"));
                topology
                    .add_memory(NodeMemory { start: PhysAddr(word(8)), bytes: word(16), node: 0 }, domain);
            }
            (2, 24..) if entry[12] & 1 != 0 => {
                let word = |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().expect("4 bytes"));
                topology.set_cpu_domain(word(8), word(4));
            }
            (_, 0) => return,
            _ => {}
        }
        rest = after;
    }
}

fn read_slit(contents: &[u8], topology: &mut Topology) {
    let Some((count, matrix)) = contents.split_first_chunk::<8>() else { return };
    let count = u64::from_le_bytes(*count) as usize;
    if count == 0 || matrix.len() / count < count {
        return;
    }
    for (from, row) in matrix.chunks_exact(count).take(count).enumerate() {
        for (to, &distance) in row.iter().enumerate() {
            topology.set_distance(from as u32, to as u32, distance);
        }
    }
}
