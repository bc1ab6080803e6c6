//! What the loader hands over: the memory map, the command line and the initial RAM disk.
//!
//! The structures are those of Xen's `public/arch-x86/hvm/start_info.h`, version 1. They lie in low memory, of
//! which the kernel keeps what it reads later ([`BootInfo::kept`]).

use core::ffi::CStr;

use quire::addr::PhysAddr;

const MAGIC: u32 = 0x336e_c578;
/// The type of usable memory, as in the firmware's E820 map.
const RAM: u32 = 1;

#[repr(C)]
#[derive(Clone, Copy)]
struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    module_count: u32,
    modules: u64,
    command_line: u64,
    rsdp: u64,
    memory_map: u64,
    memory_map_entries: u32,
    reserved: u32,
}

#[repr(C)]
struct Module {
    start: u64,
    bytes: u64,
    command_line: u64,
    reserved: u64,
}

#[repr(C)]
struct MemoryMapEntry {
    start: u64,
    bytes: u64,
    kind: u32,
    reserved: u32,
}

/// A run of physical bytes.
#[derive(Clone, Copy, Debug)]
pub struct PhysBytes {
    /// The first byte.
    pub start: PhysAddr,
    /// How many.
    pub bytes: u64,
}

/// The loader's answers, read through a map of physical memory that begins at `map`.
#[derive(Clone, Copy)]
pub struct BootInfo {
    info: StartInfo,
    map: usize,
}

impl BootInfo {
    /// Reads the start info at a physical address.
    ///
    /// # Safety
    /// The address is what the loader passed, and physical memory up to there and to what the structure points to
    /// is mapped from the virtual address `map` on, for ever.
    pub unsafe fn read(start_info: PhysAddr, map: usize) -> Self {
        // SAFETY: X1: the caller promises that a start info is mapped there.
        let info: StartInfo = unsafe { read(map, start_info.0) };
        assert_eq!((info.magic, info.version >= 1), (MAGIC, true), "the loader does not speak PVH version 1");
        Self { info, map }
    }

    /// The ranges of usable memory, in the loader's order, cut nowhere.
    pub fn usable_memory(self) -> impl Iterator<Item = PhysBytes> {
        let places = (0..u64::from(self.info.memory_map_entries))
            .map(move |index| self.info.memory_map + index * size_of::<MemoryMapEntry>() as u64);
        // SAFETY: X1: the loader says that so many entries stand there, in memory that `read` knows to be
        // mapped.
        let entries = places.map(move |place| unsafe { read::<MemoryMapEntry>(self.map, place) });
        let usable = entries.filter(|entry| entry.kind == RAM);
        usable.map(|entry| PhysBytes { start: PhysAddr(entry.start), bytes: entry.bytes })
    }

    /// The kernel's command line. It has words of the program, which need not be text.
    pub fn command_line(self) -> &'static [u8] {
        if self.info.command_line == 0 {
            return b"";
        }
        let line = core::ptr::with_exposed_provenance(self.map + self.info.command_line as usize);
        // SAFETY: X1: the loader passes a string that ends by a zero byte.
        unsafe { CStr::from_ptr(line) }.to_bytes()
    }

    /// What of the loader's data is read after the memory manager has started: the kernel's command line, the
    /// memory map and the list of modules. The start info itself was copied.
    pub fn kept(self) -> [PhysBytes; 3] {
        let StartInfo { command_line, memory_map, modules, .. } = self.info;
        let of = |start: u64, bytes: usize| PhysBytes { start: PhysAddr(start), bytes: bytes as u64 };
        [
            of(command_line, self.command_line().len() + 1),
            of(memory_map, self.info.memory_map_entries as usize * size_of::<MemoryMapEntry>()),
            of(modules, self.info.module_count as usize * size_of::<Module>()),
        ]
    }

    /// Where the firmware's root of ACPI tables lies, if it has any.
    pub fn rsdp(self) -> Option<PhysAddr> {
        (self.info.rsdp != 0).then_some(PhysAddr(self.info.rsdp))
    }

    /// Where the initial RAM disk lies, the first module.
    pub fn initrd(self) -> Option<PhysBytes> {
        if self.info.module_count == 0 {
            return None;
        }
        // SAFETY: X1: the loader passes at least one module.
        let module: Module = unsafe { read(self.map, self.info.modules) };
        Some(PhysBytes { start: PhysAddr(module.start), bytes: module.bytes })
    }
}

/// Copies a structure of the loader's, which may stand at any address.
///
/// # Safety
/// A `T` is mapped there, and every pattern of bits is a `T`.
unsafe fn read<T>(map: usize, addr: u64) -> T {
    let place = core::ptr::with_exposed_provenance::<T>(map + addr as usize);
    // SAFETY: X1: the caller promises that such a structure is mapped there.
    unsafe { place.read_unaligned() }
}
