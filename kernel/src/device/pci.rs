//! The PCI bus, through the two ports of its first mechanism, and interrupts of its devices as messages (MSI-X).
//!
//! The crate `virtio-drivers` finds devices and their registers. What it does not know is MSI-X: a device stores a
//! number at an address of the local APIC, so no interrupt line and no I/O APIC is needed.

use quire::addr::PhysAddr;
use quire::cpu::CpuId;
use virtio_drivers::transport::pci::bus::{Command, ConfigurationAccess, DeviceFunction, PciRoot};
use x86_64::instructions::port::Port;

use crate::cpu::topology;
use crate::memory::kernel_map;

const ADDRESS: u16 = 0xcf8;
const DATA: u16 = 0xcfc;
const ENABLE: u32 = 1 << 31;

/// The capabilities that are used here, by their ids.
const MSI_X: u8 = 0x11;
const VENDOR: u8 = 0x09;
/// A virtio device's common registers, among its vendor-specific capabilities (virtio 1.2, 4.1.4).
const COMMON: u16 = 1;
/// The registers that choose a queue, and its message.
const QUEUE_SELECT: usize = 0x16;
const QUEUE_MESSAGE: usize = 0x1a;
const COMMON_BYTES: u64 = 0x38;
/// In the first word of the capability: messages are on; all are masked.
const MESSAGES_ON: u32 = 1 << 31;
const ALL_MASKED: u32 = 1 << 30;
/// Where the local APICs take messages (SDM volume 3, 11.11).
const APIC_MESSAGES: u32 = 0xfee0_0000;
const ENTRY_BYTES: u64 = 16;

/// Access to the configuration of devices. Used while one CPU starts the kernel.
pub struct Ports;

impl Ports {
    fn select(function: DeviceFunction, register: u8) {
        let DeviceFunction { bus, device, function } = function;
        let place = u32::from(bus) << 16 | u32::from(device) << 11 | u32::from(function) << 8;
        // SAFETY: X6: the port says which register the other one is, and touches no memory.
        unsafe { Port::<u32>::new(ADDRESS).write(ENABLE | place | u32::from(register & !3)) };
    }
}

impl ConfigurationAccess for Ports {
    fn read_word(&self, function: DeviceFunction, register: u8) -> u32 {
        Self::select(function, register);
        // SAFETY: X6: registers of the configuration read without effect; without a bus all bits are ones.
        unsafe { Port::<u32>::new(DATA).read() }
    }

    fn write_word(&mut self, function: DeviceFunction, register: u8, value: u32) {
        Self::select(function, register);
        // SAFETY: X6: callers set commands, sizes and capabilities of a device that no other code drives. DMA
        // begins only with a queue, whose memory is the driver's (Q1).
        unsafe { Port::<u32>::new(DATA).write(value) };
    }

    unsafe fn unsafe_clone(&self) -> Self {
        Self
    }
}

/// Lets a device answer at its addresses and access memory.
pub fn enable(root: &mut PciRoot<Ports>, function: DeviceFunction) {
    root.set_command(function, Command::MEMORY_SPACE | Command::BUS_MASTER | Command::INTERRUPT_DISABLE);
}

/// Makes the first queue of a virtio device interrupt the first CPU by this vector. `None`: the device cannot. It has
/// been reset before.
pub fn send_messages(root: &mut PciRoot<Ports>, function: DeviceFunction, vector: u8) -> Option<()> {
    let capability = root.capabilities(function).find(|capability| capability.id == MSI_X)?.offset;
    let place = Ports.read_word(function, capability + 4);
    let table = registers(root, function, place as u8 & 7, place & !7, ENTRY_BYTES)?.cast::<u32>();
    let apic_id = topology::get().apic_ids()[CpuId(0).index()];
    for (at, word) in [APIC_MESSAGES | apic_id << 12, 0, u32::from(vector), 0].into_iter().enumerate() {
        // SAFETY: X5, X6: `registers` mapped the four words of the table's first entry for ever.
        unsafe { table.add(at).write_volatile(word) };
    }
    let control = Ports.read_word(function, capability);
    Ports.write_word(function, capability, control & !ALL_MASKED | MESSAGES_ON);

    let is_common = |header: u16| header >> 8 == COMMON;
    let mut all = root.capabilities(function);
    let common = all.find(|found| found.id == VENDOR && is_common(found.private_header))?.offset;
    let (bar, offset) = (Ports.read_word(function, common + 4), Ports.read_word(function, common + 8));
    let common = registers(root, function, bar as u8, offset, COMMON_BYTES)?;
    // SAFETY: X5, X6: `registers` mapped them for ever, and this CPU alone starts the device. The table's
    // entry 0 is set.
    let accepted = unsafe {
        common.add(QUEUE_SELECT).cast::<u16>().write_volatile(0);
        common.add(QUEUE_MESSAGE).cast::<u16>().write_volatile(0);
        common.add(QUEUE_MESSAGE).cast::<u16>().read_volatile()
    };
    (accepted == 0).then_some(())
}

/// Maps registers of a device, by the number of its range and the offset there.
fn registers(
    root: &mut PciRoot<Ports>,
    function: DeviceFunction,
    bar: u8,
    offset: u32,
    bytes: u64,
) -> Option<*mut u8> {
    let (start, size) = root.bar_info(function, bar).ok()??.memory_address_size()?;
    let fits = start != 0 && u64::from(offset) + bytes <= size && kernel_map::is_device(start + size);
    fits.then(|| kernel_map::map_device(PhysAddr(start + u64::from(offset)), bytes).ok())?
}
