//! Seven answers that stay exact under any mix of leaves, and for folios that leaves of several tables map.
//!
//! They are those that Linux gives up when it stops counting the pages of large folios (Hildenbrand,
//! "mm/rmap: support arbitrary folio mappings", RFC of 12 April 2026; `CONFIG_NO_PAGE_MAPCOUNT` since 6.15):
//!
//! 1. how much memory is mapped (`AnonPages`, `Mapped`), also where a folio is mapped in part;
//! 2. how often the most mapped page of a mapping is mapped (`mapmax` of `numa_maps`);
//! 3. whether an address space maps a page alone (bit 56 of `pagemap`);
//! 4. how often each frame is mapped (`kpagecount`);
//! 5. proportional shares (`Pss`);
//! 6. what an address space maps alone (`Uss`: `Private_Clean` and `Private_Dirty`);
//! 7. whether a folio is mapped in part.
//!
//! A page table walk of all address spaces says what is right. Linux's `AnonPages` counts a page once however
//! many address spaces map it, Quire's once in each: the frames that are mapped at all are the sum over the
//! folios.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use hosted::{Hosted, HostedConfig};
use quire::addr::{Frame, VirtAddr, VirtRange};
use quire::arch::EntryFlags;
use quire::hugetlb::HugeSize;
use quire::manager::Config;
use quire::page_alloc::{CountScheme, FrameInfo, NodeSet};
use quire::vm::{Access, Advice, Backing, File, FolioPolicy, ForkStrategy, MapRequest, Remap, Sharing};

use crate::usage::folios::compare_folios;
use crate::usage::naive::{Counts, compare, count, has, pages};
use crate::usage::world::{FORKS, MIB, Manager, R, RW, Space, anonymous, with_config};
use testkit::{long, order, seed};

const PAGE: u64 = 4096;
const GIB: u64 = 1 << 30;
/// Private memory, in folios of 2 MiB.
const SMALL: u64 = GIB;
const SMALL_BYTES: u64 = 16 * MIB;
/// A file in folios of 2 MiB.
const FILE: u64 = 2 * GIB;
const FILE_BYTES: u64 = 8 * MIB;
/// Where one page of 1 GiB of a pool is mapped.
const GIGANTIC: u64 = 4 * GIB;
const SPACES: usize = 3;
/// Steps between two comparisons, which take two seconds: each looks at up to a million pages.
const BETWEEN: u64 = 30;

/// Maps the page of 1 GiB; all but the first address space may map it in parts.
fn map_gigantic(mm: &Space<'_>, file: &File<'_, Hosted>, whole: bool) {
    let backing = Backing::File { file, page_offset: 0 };
    mm.mmap(&MapRequest { sharing: Sharing::Shared, backing, ..anonymous(GIGANTIC, GIB) }).unwrap();
    if whole {
        mm.fault(VirtAddr(GIGANTIC), Access::Write).unwrap();
    } else {
        mm.madvise(VirtAddr(GIGANTIC), GIB, Advice::Split).unwrap();
    }
}

/// One verb on the parts of the page of 1 GiB.
fn change_parts(mm: &Space<'_>, rng: &mut Rng) {
    let table = VirtAddr(GIGANTIC + rng.u64(0..8) * 2 * MIB);
    let at = table.add(rng.u64(0..512) * PAGE);
    match rng.u8(0..8) {
        0..=2 => _ = mm.fault(at, Access::Write),
        3 => _ = mm.madvise(table, 2 * MIB, Advice::PopulateWrite),
        4 => _ = mm.collapse(table, 2 * MIB),
        5 => _ = mm.collapse(VirtAddr(GIGANTIC), GIB),
        // Across tables.
        6 => _ = mm.madvise(at, rng.u64(1..1500) * PAGE, Advice::DontNeed),
        _ => _ = mm.madvise(table, 2 * MIB, Advice::DontNeed),
    }
}

/// One verb on private memory: folios move by odd distances, so that two tables map each.
fn change_small(manager: &Manager<'_>, mm: &Space<'_>, rng: &mut Rng) {
    let page = |rng: &mut Rng| VirtAddr(SMALL + rng.u64(0..SMALL_BYTES / PAGE) * PAGE);
    let (at, len) = (page(rng), rng.u64(1..700) * PAGE);
    match rng.u8(0..9) {
        0 => _ = mm.mmap(&anonymous(at.align_down(2 * MIB).0, 4 * MIB)),
        1 | 2 => _ = mm.madvise(at.align_down(2 * MIB), 4 * MIB, Advice::PopulateWrite),
        3 => _ = mm.madvise(at, len, Advice::DontNeed),
        4 | 5 => _ = mm.mremap(at.align_down(2 * MIB), 2 * MIB, 2 * MIB, Remap::Fixed(page(rng))),
        6 => _ = mm.mprotect(at, len, if rng.bool() { R } else { RW }),
        7 => _ = mm.munmap(at, len),
        _ => {
            if let Some(leaf) = mm.translate(at, Access::Read) {
                let _split = manager.split_folio(leaf.frame, order(rng.u8(0..6)));
            }
        }
    }
}

/// One verb on the mapping of the file, whose folios move in the same way.
fn change_file(mm: &Space<'_>, rng: &mut Rng) {
    let page = |rng: &mut Rng| VirtAddr(FILE + rng.u64(0..FILE_BYTES / PAGE) * PAGE);
    let (at, len) = (page(rng), rng.u64(1..700) * PAGE);
    match rng.u8(0..5) {
        0 | 1 => _ = mm.madvise(at.align_down(2 * MIB), 4 * MIB, Advice::PopulateWrite),
        2 => _ = mm.madvise(at, len, Advice::DontNeed),
        3 => _ = mm.mremap(at.align_down(2 * MIB), 2 * MIB, 2 * MIB, Remap::Fixed(page(rng))),
        _ => _ = mm.munmap(at, (len / 8) & !(PAGE - 1)),
    }
}

/// Folios of 2 MiB that leaves of several tables of one address space map.
fn in_several_tables(machine: &Hosted, spaces: &[Space<'_>]) -> usize {
    let mut several = 0;
    for mm in spaces {
        let mut tables: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for (addr, frame, _) in pages(machine, mm).iter().filter(|(addr, ..)| *addr < GIGANTIC) {
            tables.entry(frame / 512).or_default().insert(addr / (2 * MIB));
        }
        several += tables.values().filter(|tables| tables.len() > 1).count();
    }
    several
}

/// Answers 1: amounts of the whole machine, and the frames that are mapped at all.
fn compare_amounts(machine: &Hosted, manager: &Manager<'_>, spaces: &[Space<'_>], counts: &Counts) {
    let (mut anon, mut of_files, mut frames) = (0, 0, BTreeSet::new());
    for (addr, frame, leaf) in spaces.iter().flat_map(|mm| pages(machine, mm)) {
        if !has(&leaf, EntryFlags::SPECIAL) {
            let is_anon = has(&leaf, EntryFlags::ANON);
            anon += u64::from(is_anon);
            // Linux counts pages of pools in neither of them.
            of_files += u64::from(!is_anon && addr < GIGANTIC);
            frames.insert(frame);
        }
    }
    let info = manager.meminfo();
    assert_eq!((info.anon, info.mapped), (anon, of_files), "AnonPages and Mapped");
    let (mut at, mut mapped) = (machine.ranges()[0].start.0 / PAGE, 0);
    while at < machine.ranges().last().expect("memory").end().0 / PAGE {
        let info = manager.pages().frames().frame_info(Frame(at));
        let FrameInfo::InUse { head, frames, .. } = info else {
            at += 1;
            continue;
        };
        let maps = manager.pages().counts().folio_maps(head).expect("a folio in use");
        mapped += maps.mapped.expect("counts by frame");
        at = head.0 + frames;
    }
    assert_eq!((mapped, frames.len()), (counts.len() as u64, counts.len()), "frames that are mapped");
}

/// Answers 2: the largest count in each mapping.
fn compare_most(machine: &Hosted, spaces: &[Space<'_>], counts: &Counts) {
    for mm in spaces {
        let pages = pages(machine, mm);
        let mut ranges: Vec<VirtRange> = Vec::new();
        mm.vmas(|vma| ranges.push(vma.range));
        for range in ranges {
            let mut most = 0;
            mm.mapped(range, |run| most = most.max(run.spaces));
            let from = pages.partition_point(|(addr, ..)| *addr < range.start.0);
            let inside = pages[from..].iter().take_while(|(addr, ..)| *addr < range.end.0);
            let expected = inside.filter_map(|(_, frame, _)| counts.get(frame)).max();
            assert_eq!(most, expected.copied().unwrap_or(0), "mapmax of {range:?}");
        }
    }
}

fn run(fork: ForkStrategy, seed: u64) {
    println!("QUIRE_SEED={seed}, {fork:?}");
    let folios = FolioPolicy::only(order(9)).with_pmd_mapped(true);
    let machine = HostedConfig { clearing: false, ..HostedConfig::new(2 * GIB + 192 * MIB) };
    with_config(machine, Config { fork, folios, ..Config::default() }, |machine, manager| {
        assert_eq!(manager.resize_huge(HugeSize::Size1G, NodeSet::ALL, 1).after, 1);
        let file = manager.huge_file(HugeSize::Size1G, GIB).unwrap();
        let mut rng = Rng::with_seed(seed);
        let mut spaces = vec![manager.new_mm().unwrap()];
        map_gigantic(&spaces[0], &file, true);
        spaces[0].mmap(&anonymous(SMALL, SMALL_BYTES)).unwrap();
        spaces[0].madvise(VirtAddr(SMALL), SMALL_BYTES, Advice::PopulateWrite).unwrap();
        let of_folios = manager.shmem(FILE_BYTES).unwrap();
        let backing = Backing::File { file: &of_folios, page_offset: 0 };
        let shared_file = MapRequest { sharing: Sharing::Shared, backing, ..anonymous(FILE, FILE_BYTES) };
        spaces[0].mmap(&shared_file).unwrap();
        spaces[0].madvise(VirtAddr(FILE), FILE_BYTES, Advice::PopulateWrite).unwrap();
        // Leaves of a folio that are of one size and lie in one table could be counted by the folio alone.
        let (mut in_parts, mut shared, mut in_two, mut of_files) = (0, 0, 0, 0);
        for step in 0..BETWEEN * if long() { 10 } else { 2 } {
            let number = rng.usize(0..spaces.len());
            match rng.u8(0..10) {
                0 if spaces.len() < SPACES => {
                    let child = spaces[number].fork().unwrap();
                    child.munmap(VirtAddr(GIGANTIC), GIB).unwrap();
                    map_gigantic(&child, &file, false);
                    spaces.push(child);
                }
                1 if number > 0 && spaces.len() > 2 => spaces.swap_remove(number).exit(),
                2..=5 if number > 0 => change_parts(&spaces[number], &mut rng),
                6 | 7 => change_file(&spaces[number], &mut rng),
                _ => change_small(manager, &spaces[number], &mut rng),
            }
            if step % BETWEEN == BETWEEN - 1 {
                let counts = count(machine, &spaces);
                compare_amounts(machine, manager, &spaces, &counts);
                compare_most(machine, &spaces, &counts);
                // Answers 3 to 6, and 7.
                in_two += in_several_tables(machine, &spaces);
                of_files += manager.meminfo().mapped;
                shared += compare(machine, manager, &spaces);
                in_parts += compare_folios(machine, manager, &spaces, CountScheme::Dense)[1];
            }
        }
        println!(
            "shared pages {shared}, folios in part {in_parts}, in two tables {in_two}, mapped {of_files}"
        );
        assert!(
            shared > 1000 && in_parts > 3 && in_two > 3,
            "{shared}, {in_parts}, {in_two}: too little happens"
        );
        assert!(of_files > 500, "{of_files} pages of files");
        spaces.drain(..).for_each(|mm| {
            mm.validate().unwrap();
            mm.exit();
        });
        drop((file, of_folios));
        assert_eq!(manager.resize_huge(HugeSize::Size1G, NodeSet::ALL, 0).after, 0);
    });
}

#[test]
fn seven_answers_stay_exact_under_mixed_leaves() {
    for (number, fork) in FORKS.into_iter().enumerate() {
        run(fork, seed(41) + number as u64);
    }
}
