//! Memory maps of the crate `multiboot2` (GRUB and other boot loaders that follow the Multiboot2 specification).
#![forbid(unsafe_code)]

use multiboot2::{BootInformation, EFIMemoryAreaType, MemoryAreaType};
use quire::addr::PhysAddr;

use crate::MemoryMap;

/// ELF's `SHF_ALLOC`: the section is in memory.
const LOADED: u64 = 2;

/// The usable memory of a boot information structure, without the memory that the kernel needs: the structure
/// itself, the kernel's own ELF sections, and the modules. `None` if the boot loader gave no memory map,
/// neither its own nor that of EFI.
///
/// `link_offset` is the difference between the kernel's linked and loaded addresses: 0 unless it runs in the
/// higher half. A section that is linked below `link_offset`, such as code that runs before paging is on, is loaded
/// where it is linked. The structure is excluded at the address at which it is read, which must be its physical
/// address, as when a boot loader starts the kernel.
///
/// The map may have physical frame 0. A kernel whose direct map puts it at address zero reserves it, since a pointer to it
/// would be null.
pub fn memory_map(boot: &BootInformation<'_>, link_offset: u64) -> Option<MemoryMap> {
    let mut map = of_areas(boot).or_else(|| of_efi(boot))?;
    map.reserve(PhysAddr(boot.start_address() as u64), boot.total_size() as u64);
    let sections = boot.elf_sections_tag().map(|tag| tag.sections()).into_iter().flatten();
    for section in sections.filter(|section| section.sh_flags & LOADED != 0) {
        let linked = section.sh_addr;
        map.reserve(PhysAddr(linked.checked_sub(link_offset).unwrap_or(linked)), section.sh_size);
    }
    for module in boot.module_tags() {
        map.reserve(PhysAddr(module.start_address().into()), module.module_size().into());
    }
    Some(map)
}

/// The map that the boot loader made. Areas may overlap; memory that any of them excludes is not usable.
fn of_areas(boot: &BootInformation<'_>) -> Option<MemoryMap> {
    let areas = boot.memory_map_tag()?.memory_areas();
    let mut map = MemoryMap::new();
    let usable = areas.iter().filter(|area| area.typ() == MemoryAreaType::Available);
    usable.for_each(|area| map.add(PhysAddr(area.start_address()), area.size()));
    let taken = areas.iter().filter(|area| area.typ() != MemoryAreaType::Available);
    taken.for_each(|area| map.reserve(PhysAddr(area.start_address()), area.size()));
    Some(map)
}

/// The map of EFI, for kernels that are started after the exit from boot services: that memory is then usable too (UEFI 2.10,
/// table 7.10).
fn of_efi(boot: &BootInformation<'_>) -> Option<MemoryMap> {
    const FREE: [EFIMemoryAreaType; 3] = [
        EFIMemoryAreaType::CONVENTIONAL,
        EFIMemoryAreaType::BOOT_SERVICES_CODE,
        EFIMemoryAreaType::BOOT_SERVICES_DATA,
    ];
    let areas = boot.efi_memory_map_tag()?;
    let mut map = MemoryMap::new();
    for area in areas.memory_areas().filter(|area| FREE.contains(&area.ty)) {
        map.add(PhysAddr(area.phys_start), area.page_count.saturating_mul(4096));
    }
    Some(map)
}
