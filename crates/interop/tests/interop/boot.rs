//! What boot loaders say of memory.

use bootloader_api::info::{MemoryRegion, MemoryRegionKind};
use limine::memory_map::{Entry, EntryType};
use multiboot2::{BootInformation, ElfSectionsTag, MemoryArea, MemoryAreaType, MemoryMapTag, ModuleTag};

use hosted::raw::RawPages;
use hosted::{HostedConfig, MemoryRange};
use quire::cpu::CpuId;
use quire::manager::Config;
use quire::page_alloc::AllocatorConfig;
use quire_interop::MemoryMap;

const MIB: u64 = 1 << 20;

/// First frame and number of frames of each range.
fn frames(map: &MemoryMap) -> Vec<(u64, u64)> {
    map.ranges().iter().map(|range| (range.frames.start.0, range.frames.count)).collect()
}

/// A machine that has exactly this memory starts with the map, and hands a page out.
fn starts_a_manager(map: &MemoryMap) {
    let ranges = map
        .ranges()
        .iter()
        .map(|range| MemoryRange::new(range.frames.start.addr().0, range.frames.count * 4096));
    let machine = HostedConfig::new(0).with_ranges(ranges.collect()).build().unwrap();
    machine.run_on(CpuId(0), || {
        let manager = hosted::raw::memory_manager(&machine, map.ranges(), &Config::default()).unwrap();
        assert_eq!(manager.meminfo().frames.total, map.frames());
        assert_eq!(manager.validate(), Ok(()));
    });
}

#[test]
fn bootloader_regions_become_ranges() {
    let region = |start, end, kind| MemoryRegion { start, end, kind };
    let regions = [
        region(16 * MIB, 32 * MIB, MemoryRegionKind::Usable),
        region(0x1000, 0x9_fc00, MemoryRegionKind::Usable),
        region(MIB, 16 * MIB, MemoryRegionKind::Bootloader),
        region(31 * MIB + 5, 31 * MIB + 6, MemoryRegionKind::UnknownUefi(7)),
        region(0xa_0000, 0xa_0000, MemoryRegionKind::Usable),
    ];
    let map = quire_interop::bootloader::memory_map(&regions);
    assert_eq!(frames(&map), [(1, 0x9e), (0x1000, 0xf00), (0x1f01, 0xff)]);
    starts_a_manager(&map);
}

#[test]
fn limine_entries_become_ranges() {
    let entry = |base, length, entry_type| Entry { base, length, entry_type };
    let entries = [
        entry(0x1000, 0x9_f000, EntryType::USABLE),
        entry(MIB, 15 * MIB, EntryType::EXECUTABLE_AND_MODULES),
        entry(16 * MIB, 8 * MIB, EntryType::USABLE),
        entry(24 * MIB, MIB, EntryType::BOOTLOADER_RECLAIMABLE),
        entry(25 * MIB, 7 * MIB, EntryType::USABLE),
        // Reserved entries may overlap others.
        entry(24 * MIB + 0x8_0000, MIB, EntryType::RESERVED),
        entry(32 * MIB, 5 * MIB, EntryType::BOOTLOADER_RECLAIMABLE),
    ];
    let entries: Vec<&Entry> = entries.iter().collect();
    let map = quire_interop::limine::memory_map(&entries);
    assert_eq!(frames(&map), [(1, 0x9f), (0x1000, 0x800), (0x1980, 0x680)]);
    starts_a_manager(&map);
    let later = quire_interop::limine::reclaimable(&entries);
    assert_eq!(frames(&later), [(0x1800, 0x80), (0x2000, 0x500)]);

    // What the boot loader gives up is added once the kernel is done with it.
    let machine = HostedConfig::new(37 * MIB).build().unwrap();
    machine.run_on(CpuId(0), || {
        let config = AllocatorConfig::default();
        let pages =
            hosted::raw::page_allocator_with_later(&machine, map.ranges(), later.ranges(), config).unwrap();
        let before = pages.memory_info().total;
        later.whole_blocks().for_each(|blocks| pages.add_memory_raw(blocks, false).unwrap());
        assert_eq!(pages.memory_info().total, before + 1024, "two blocks of 2 MiB");
        assert_eq!(pages.validate(), Ok(()));
    });
}

/// The bytes of a section header of ELF64 for a section in memory.
fn section(address: u64, size: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    [1_u32, 1].iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
    [2_u64, address, 0, size].iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
    bytes.extend([0; 24]);
    bytes
}

#[test]
fn multiboot2_areas_become_ranges_without_the_kernel_and_its_modules() {
    const LINK_OFFSET: u64 = 0xffff_ffff_8000_0000;
    let areas = [
        MemoryArea::new(0, 0x9_fc00, MemoryAreaType::Available),
        MemoryArea::new(0x9_0000, 0x10_0000, MemoryAreaType::Reserved),
        MemoryArea::new(MIB, 31 * MIB, MemoryAreaType::Available),
    ];
    let sections = [section(LINK_OFFSET + MIB, 0x1_2345), [0; 64].into()].concat();
    let built = multiboot2::Builder::new()
        .mmap(MemoryMapTag::new(&areas))
        .add_module(ModuleTag::new(0x20_0000, 0x20_1001, "initrd"))
        .elf_sections(ElfSectionsTag::new(2, 64, 0, &sections))
        .build();
    // SAFETY: invariant 1: the builder made the structure, and it is the test's own.
    let boot = unsafe { BootInformation::load((&raw const *built).cast()) }.unwrap();
    let map = quire_interop::multiboot2::memory_map(&boot, LINK_OFFSET).unwrap();
    assert_eq!(frames(&map), [(0, 0x90), (0x190, 0x70), (0x202, 0x1dfe)]);
    starts_a_manager(&map);

    let empty = multiboot2::Builder::new().build();
    // SAFETY: invariant 1: as the other, made by the builder.
    let boot = unsafe { BootInformation::load((&raw const *empty).cast()) }.unwrap();
    assert!(quire_interop::multiboot2::memory_map(&boot, 0).is_none());
}

/// A kernel in the higher half is started by code that is linked where it is loaded.
#[test]
fn sections_below_the_link_offset_are_reserved_where_they_are() {
    const LINK_OFFSET: u64 = 0xffff_ffff_8000_0000;
    let sections = [section(MIB, 0x2000), section(LINK_OFFSET + 2 * MIB, 0x1_2345), [0; 64].into()].concat();
    let built = multiboot2::Builder::new()
        .mmap(MemoryMapTag::new(&[MemoryArea::new(MIB, 31 * MIB, MemoryAreaType::Available)]))
        .elf_sections(ElfSectionsTag::new(3, 64, 0, &sections))
        .build();
    // SAFETY: invariant 1: the builder made the structure, and it is the test's own.
    let boot = unsafe { BootInformation::load((&raw const *built).cast()) }.unwrap();
    let map = quire_interop::multiboot2::memory_map(&boot, LINK_OFFSET).unwrap();
    assert_eq!(frames(&map), [(0x102, 0xfe), (0x213, 0x1ded)]);
}
