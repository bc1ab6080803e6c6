//! The sharers of a folio, against a naive reading of all page tables, in every way of counting (invariant
//! 5).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use fastrand::Rng;
use hosted::{Hosted, HostedConfig};
use quire::addr::{Frame, VirtAddr};
use quire::arch::EntryFlags;
use quire::hugetlb::HugeSize;
use quire::manager::Config;
use quire::page_alloc::{AllocatorConfig, CountScheme, FolioMaps, FrameInfo, NodeSet};
use quire::platform::FileId;
use quire::vm::{Access, Advice, Backing, FolioPolicy, ForkStrategy, MapRequest, Placement, Remap, Sharing};

use crate::usage::flags::compare_flags;
use crate::usage::lockstep::World;
use crate::usage::naive::compare;
use crate::usage::world::{FORKS, MIB, Manager, RW, Space, anonymous, with_config};
use testkit::{order, seed};

const PAGE: u64 = 4096;
const BASE: u64 = 1 << 30;

/// Of so many leaves of one folio in a row one is asked about.
const APART: usize = 16;

/// A leaf by its table and its index there: however many address spaces reach it, it is one.
type Place = (u64, u64);

/// Address spaces, a bit for each by its number. Millions of these are compared.
type Users = u64;

/// The leaves of one folio: which part of it each maps, and which address spaces reach it.
type Leaves = BTreeMap<Place, (u64, u64, Users)>;

/// Where the folio around a frame starts, and where it ends.
fn folio_of(manager: &Manager<'_>, frame: u64) -> (u64, u64) {
    match manager.pages().frames().frame_info(Frame(frame)) {
        FrameInfo::InUse { head, frames, .. } => (head.0, head.0 + frames),
        other => panic!("frame {frame:#x} is mapped and {other:?}"),
    }
}

/// Every folio that is mapped, by its first frame.
fn folios(machine: &Hosted, manager: &Manager<'_>, spaces: &[Space<'_>]) -> BTreeMap<u64, Leaves> {
    let mut folios: BTreeMap<u64, Leaves> = BTreeMap::new();
    for (number, mm) in spaces.iter().enumerate() {
        let mut folio = (0, 0);
        for leaf in machine.leaves(mm.root()) {
            if leaf.entry & EntryFlags::SPECIAL.bits() != 0 {
                continue;
            }
            let index = leaf.addr.0 / (leaf.frames * PAGE) % 512;
            // A large leaf of a file maps many folios of a frame.
            let (mut at, end) = (leaf.frame.0, leaf.frame.0 + leaf.frames);
            while at < end {
                // Most leaves map the folio of the leaf before.
                if !(folio.0..folio.1).contains(&at) {
                    folio = folio_of(manager, at);
                }
                let (head, behind) = folio;
                let found = folios.entry(head).or_default().entry((leaf.table.0, index)).or_default();
                (found.0, found.1) = (at, behind.min(end) - at);
                found.2 |= 1 << number;
                at = behind;
            }
        }
    }
    folios
}

/// Compares the answers for every folio in use, mapped or not. Returns how many are mapped by more than one
/// address space, how many are mapped in part, and how many are mapped by one address space more than once.
pub(crate) fn compare_folios(
    machine: &Hosted,
    manager: &Manager<'_>,
    spaces: &[Space<'_>],
    counts: CountScheme,
) -> [usize; 3] {
    let folios = folios(machine, manager, spaces);
    let (mut at, mut seen) = (machine.ranges()[0].start.0 / PAGE, [0; 3]);
    let last = machine.ranges().last().expect("memory").end().0 / PAGE;
    let mut users: BTreeMap<u64, Users> = BTreeMap::new();
    while at < last {
        let FrameInfo::InUse { head, frames, .. } = manager.pages().frames().frame_info(Frame(at)) else {
            assert_eq!(manager.pages().counts().folio_maps(Frame(at)), None);
            at += 1;
            continue;
        };
        let none = Leaves::new();
        let leaves = folios.get(&head.0).unwrap_or(&none);
        let mut is_mapped = vec![false; frames as usize];
        for (first, count, _) in leaves.values() {
            is_mapped[(first - head.0) as usize..][..*count as usize].fill(true);
        }
        let mapped = is_mapped.into_iter().filter(|mapped| *mapped).count() as u64;
        let by = leaves.values().fold(0, |all: Users, (_, _, by)| all | by);
        let maps = manager.pages().counts().folio_maps(head).expect("a folio in use");
        let of_folio = !matches!(counts, CountScheme::Dense | CountScheme::PerFrame)
            && frames >= 512
            && !leaves.is_empty();
        let told = |value: usize| if of_folio { None } else { Some(value as u64) };
        let expected = FolioMaps {
            folio: quire::addr::FrameRange::new(head, frames),
            mapcount: leaves.len() as u64,
            entire: told(leaves.values().filter(|(_, count, _)| *count == frames).count()),
            mapped: told(mapped as usize),
        };
        assert_eq!(maps, expected, "{counts:?}");
        let inside = Frame(head.0 + frames / 2);
        assert_eq!(
            manager.pages().counts().folio_maps(inside),
            Some(expected),
            "asked about another frame of it"
        );
        assert_eq!(maps.is_mapped(), !leaves.is_empty());
        let part = mapped > 0 && mapped < frames;
        assert_eq!(maps.is_partially_mapped(), told(part.into()).map(|part| part == 1));
        assert_eq!(
            manager.folio_spaces(inside),
            Some(u64::from(by.count_ones())),
            "{counts:?}, folio {head:?}"
        );
        seen[0] += usize::from(by.count_ones() > 1);
        seen[1] += usize::from(part);
        seen[2] += usize::from(by.count_ones() == 1 && leaves.len() as u64 > mapped);
        users.insert(head.0, by);
        at = head.0 + frames;
    }
    for (number, mm) in spaces.iter().enumerate() {
        let leaves = machine.leaves(mm.root());
        let folios: Vec<_> = leaves.iter().map(|leaf| folio_of(manager, leaf.frame.0)).collect();
        for (at, leaf) in leaves.iter().enumerate() {
            // An answer reads all tables that map the folio: of its leaves in a row the first and the last one are
            // asked about, and a few others.
            let continues = |other: Option<usize>| other.and_then(|at| folios.get(at)) == Some(&folios[at]);
            if continues(at.checked_sub(1)) && continues(Some(at + 1)) && at % APART != 0 {
                continue;
            }
            // A large leaf of a file maps many folios of a frame: its last page may be of another one.
            let last = leaf.frames - 1;
            for page in std::iter::once(0).chain((last > 0).then_some(last)) {
                let addr = leaf.addr.add(page * PAGE);
                let expected = (leaf.entry & EntryFlags::SPECIAL.bits() == 0)
                    .then(|| users[&folio_of(manager, leaf.frame.0 + page).0] == 1 << number);
                assert_eq!(mm.maps_exclusively(addr), expected, "{counts:?}: {addr:?} of {number}");
            }
        }
    }
    seen
}

fn config(fork: ForkStrategy, folios: FolioPolicy, counts: CountScheme) -> Config {
    let allocator = AllocatorConfig { counts, ..AllocatorConfig::default() };
    Config { allocator, fork, folios, ..Config::default() }
}

/// A place is populated and a piece of it unmapped: large folios that are mapped in part.
fn hole(world: &mut World<'_, '_>) {
    let mm = &world.spaces[world.rng.usize(0..world.spaces.len())];
    let place = VirtAddr(BASE + world.rng.u64(0..6) * 4 * MIB);
    // Populating may be refused where nothing is mapped, or where stores are not allowed.
    let _populated = mm.madvise(place, 4 * MIB, Advice::PopulateWrite);
    let at = place.add(world.rng.u64(0..512) * PAGE);
    let _gone = mm.madvise(at, world.rng.u64(1..64) * PAGE, Advice::DontNeed);
}

fn drawn(fork: ForkStrategy, counts: CountScheme, seed: u64, sums: &mut [usize; 3]) {
    println!("QUIRE_SEED={seed}, {fork:?}, {counts:?}");
    let folios = FolioPolicy::only(order(9)).with_pmd_mapped(true);
    with_config(HostedConfig::new(192 * MIB), config(fork, folios, counts), |machine, manager| {
        assert_eq!(manager.resize_huge(HugeSize::Size2M, NodeSet::ALL, 8).after, 8);
        machine.files().set_size(FileId(2), 4 * MIB);
        let own = (
            manager.open(FileId(2)).unwrap(),
            manager.shmem(4 * MIB).unwrap(),
            manager.huge_file(HugeSize::Size2M, 4 * MIB).unwrap(),
        );
        let (first, rng) = (manager.new_mm().unwrap(), Rng::with_seed(seed));
        let (file, shared, parts) = (&own.0, &own.1, &own.2);
        let mut world = World { manager, file, shared, parts: Some(parts), spaces: vec![first], rng };
        let mut seen = [0; 3];
        for step in 0..480 {
            world.step();
            if step % 5 == 0 {
                hole(&mut world);
            }
            if step % 20 == 0 {
                let more = compare_folios(machine, manager, &world.spaces, counts);
                (0..3).for_each(|at| seen[at] += more[at]);
                let by_frame = matches!(counts, CountScheme::Dense | CountScheme::PerFrame);
                if step % 60 == 0 {
                    compare_flags(machine, manager, &world.spaces, by_frame);
                }
                if counts == CountScheme::Dense {
                    let _shared = compare(machine, manager, &world.spaces);
                }
            }
        }
        sums.iter_mut().zip(seen).for_each(|(sum, more)| *sum += more);
        world.spaces.drain(..).for_each(|mm| {
            mm.validate().unwrap();
            mm.exit();
        });
        // Its pages return to the pool with the file.
        drop(own);
        assert_eq!(manager.resize_huge(HugeSize::Size2M, NodeSet::ALL, 0).after, 0);
    });
}

// Each way to fork has a test below.
const _: () = assert!(FORKS.len() == 2);

/// Draws verbs in every way of counting, with this way to fork.
fn drawn_in_every_way(fork: ForkStrategy) {
    let mut sums = [0; 3];
    let at = FORKS.iter().position(|one| *one == fork).expect("a way to fork");
    for (number, counts) in CountScheme::ALL.into_iter().enumerate() {
        drawn(fork, counts, seed(31) + (at * 8 + number) as u64, &mut sums);
    }
    println!("shared, in part, twice by one: {sums:?}");
    assert!(sums[0] > 500 && sums[1] > 10 && sums[2] > 5, "{sums:?}: too little happens");
}

#[test]
fn drawn_verbs_in_every_way_of_counting_where_fork_copies_leaves() {
    drawn_in_every_way(ForkStrategy::Copy);
}

#[test]
fn drawn_verbs_in_every_way_of_counting_where_fork_shares_tables() {
    drawn_in_every_way(ForkStrategy::Share);
}

/// A third address space maps what two map already, and then any of them unmaps it. The last one has it
/// exclusively, and none has it before that. Anonymous memory, moved and split; page cache; pages of a pool
/// in parts.
#[test]
fn the_third_mapper_comes_and_leaves() {
    let folios = FolioPolicy::only(order(9)).with_pmd_mapped(true);
    for (fork, counts) in FORKS.into_iter().flat_map(|fork| CountScheme::ALL.map(|counts| (fork, counts))) {
        with_config(HostedConfig::new(96 * MIB), config(fork, folios, counts), |_, manager| {
            assert_eq!(manager.resize_huge(HugeSize::Size2M, NodeSet::ALL, 2).after, 2);
            let shmem = manager.shmem(2 * MIB).unwrap();
            let huge = manager.huge_file(HugeSize::Size2M, 2 * MIB).unwrap();
            for gone in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]] {
                let first = manager.new_mm().unwrap();
                let places = [BASE, BASE + 8 * MIB, BASE + 16 * MIB, BASE + 24 * MIB];
                let of = |file, addr| MapRequest {
                    sharing: Sharing::Shared,
                    backing: Backing::File { file, page_offset: 0 },
                    ..anonymous(addr, 2 * MIB)
                };
                first.mmap(&anonymous(places[0], 2 * MIB)).unwrap();
                first.mmap(&anonymous(BASE + 64 * MIB, 2 * MIB)).unwrap();
                first.mmap(&of(&shmem, places[2])).unwrap();
                first.mmap(&of(&huge, places[3])).unwrap();
                first.madvise(VirtAddr(places[3]), 2 * MIB, Advice::Split).unwrap();
                for at in [places[0], BASE + 64 * MIB, places[2], places[3]] {
                    first.fault(VirtAddr(at), Access::Write).unwrap();
                }
                let (from, to) = (VirtAddr(BASE + 64 * MIB), VirtAddr(places[1]));
                first.mremap(from, 2 * MIB, 2 * MIB, Remap::Fixed(to)).unwrap();
                first.mprotect(VirtAddr(places[0] + PAGE), PAGE, quire::arch::Protection::READ).unwrap();
                first.madvise(VirtAddr(places[3] + PAGE), PAGE, Advice::DontNeed).unwrap();
                first.fault(VirtAddr(places[3] + PAGE), Access::Write).unwrap();
                let alone = |mm: &Space<'_>| places.map(|at| mm.maps_exclusively(VirtAddr(at)));
                assert_eq!(alone(&first), [Some(true); 4], "{fork:?}, {counts:?}");
                let mut spaces = vec![Some(first)];
                for _ in 0..2 {
                    let child = spaces[0].as_ref().unwrap().fork().unwrap();
                    for at in &places[2..] {
                        child.fault(VirtAddr(*at), Access::Read).unwrap();
                    }
                    spaces.push(Some(child));
                }
                for (left, number) in gone.into_iter().enumerate() {
                    for mm in spaces.iter().flatten() {
                        assert_eq!(alone(mm), [Some(left == 2); 4], "{fork:?}, {counts:?}: {left} left");
                    }
                    let frame = spaces[number].as_ref().unwrap().translate(VirtAddr(places[0]), Access::Read);
                    assert_eq!(manager.folio_spaces(frame.unwrap().frame), Some(3 - left as u64));
                    spaces[number].take().unwrap().exit();
                }
            }
            drop((shmem, huge));
            assert_eq!(manager.resize_huge(HugeSize::Size2M, NodeSet::ALL, 0).after, 0);
        });
    }
}

/// An address space that maps a page of a file at two addresses has it exclusively, though the page is mapped
/// twice.
#[test]
fn twice_by_one_is_exclusive() {
    for counts in CountScheme::ALL {
        with_config(
            HostedConfig::new(64 * MIB),
            config(ForkStrategy::Copy, FolioPolicy::only(order(0)), counts),
            |_, manager| {
                assert_eq!(manager.resize_huge(HugeSize::Size2M, NodeSet::ALL, 1).after, 1);
                let files =
                    [manager.shmem(MIB).unwrap(), manager.huge_file(HugeSize::Size2M, 2 * MIB).unwrap()];
                for (file, len) in files.iter().zip([MIB, 2 * MIB]) {
                    let (mm, other) = (manager.new_mm().unwrap(), manager.new_mm().unwrap());
                    let at = |addr| MapRequest {
                        prot: RW,
                        sharing: Sharing::Shared,
                        placement: Placement::Fixed,
                        backing: Backing::File { file, page_offset: 0 },
                        ..anonymous(addr, len)
                    };
                    for addr in [BASE, BASE + 4 * MIB] {
                        mm.mmap(&at(addr)).unwrap();
                        mm.fault(VirtAddr(addr), Access::Write).unwrap();
                        assert_eq!(mm.maps_exclusively(VirtAddr(BASE)), Some(true));
                    }
                    let frame = mm.translate(VirtAddr(BASE), Access::Read).unwrap().frame;
                    let maps = manager.pages().counts().folio_maps(frame).unwrap();
                    assert_eq!((maps.mapcount, manager.folio_spaces(frame)), (2, Some(1)));
                    other.mmap(&at(BASE)).unwrap();
                    other.fault(VirtAddr(BASE), Access::Read).unwrap();
                    assert_eq!(manager.folio_spaces(frame), Some(2));
                    mm.munmap(VirtAddr(BASE), len).unwrap();
                    let asked = [
                        mm.maps_exclusively(VirtAddr(BASE + 4 * MIB)),
                        other.maps_exclusively(VirtAddr(BASE)),
                    ];
                    assert_eq!(asked, [Some(false); 2], "each once: two leaves, two address spaces");
                    mm.exit();
                    assert_eq!(other.maps_exclusively(VirtAddr(BASE)), Some(true));
                    assert_eq!(other.maps_exclusively(VirtAddr(BASE + 32 * MIB)), None);
                    other.exit();
                }
                drop(files);
                assert_eq!(manager.resize_huge(HugeSize::Size2M, NodeSet::ALL, 0).after, 0);
            },
        );
    }
}

/// While two address spaces map a folio, and others map and unmap it, none is ever told that the folio is
/// exclusive.
#[test]
fn never_exclusive_while_others_come_and_go() {
    for fork in FORKS {
        let folios = FolioPolicy::only(order(9)).with_pmd_mapped(true);
        with_config(
            HostedConfig::new(96 * MIB).with_cpus(2),
            config(fork, folios, CountScheme::Dense),
            |machine, manager| {
                let (first, over) = (manager.new_mm().unwrap(), AtomicBool::new(false));
                first.mmap(&anonymous(BASE, 4 * MIB)).unwrap();
                first.madvise(VirtAddr(BASE), 4 * MIB, Advice::PopulateWrite).unwrap();
                let kept = first.fork().unwrap();
                // Its tables of small leaves are its own, or shared again with each child.
                kept.mprotect(VirtAddr(BASE), PAGE, quire::arch::Protection::READ).unwrap();
                std::thread::scope(|scope| {
                    let comes_and_goes = || {
                        machine.run_on(quire::cpu::CpuId(1), || {
                            for round in 0..400 {
                                let child = kept.fork().unwrap();
                                if round % 2 == 0 {
                                    child.munmap(VirtAddr(BASE + round % 64 * PAGE), 4 * PAGE).unwrap();
                                }
                                child.exit();
                            }
                            over.store(true, Ordering::Release);
                        });
                    };
                    let thread = scope.spawn(comes_and_goes);
                    let mut asked = 0;
                    while !over.load(Ordering::Acquire) || asked < 10 {
                        let at = VirtAddr(BASE + asked % 1024 * PAGE);
                        assert_eq!(first.maps_exclusively(at), Some(false), "{fork:?}");
                        asked += 1;
                    }
                    thread.join().unwrap();
                });
                kept.exit();
                assert_eq!(first.maps_exclusively(VirtAddr(BASE + PAGE)), Some(true));
                first.exit();
            },
        );
    }
}
