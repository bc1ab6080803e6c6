//! Anonymous frames are found wherever they are mapped, and large folios that are mapped by large leaves are
//! split.

use hosted::raw::RawPages;
use hosted::{FailurePlan, Hosted, HostedConfig};
use quire::addr::{Frame, Order, VirtAddr};
use quire::error::SplitError;
use quire::platform::FileId;
use quire::stats::Stat;
use quire::vm::{Backing, File, FolioPolicy, MapRequest, Remap, Sharing};

use crate::vm::world::{MIB, Manager, Space, anonymous, load, run, store, with_manager};
use testkit::order;

const BASE: u64 = 0x1000_0000;
const PAGE: u64 = 4096;

fn small(test: impl FnOnce(&Hosted, &Manager<'_>)) {
    with_manager(HostedConfig::new(64 * MIB), test);
}

/// Where the frame is mapped: the index of the address space in `spaces`, and the address.
fn found(manager: &Manager<'_>, spaces: &[&Space<'_>], frame: Frame) -> Vec<(usize, u64)> {
    let mut found = Vec::new();
    manager.mappings(frame, |root, addr| {
        let space = spaces.iter().position(|mm| mm.root() == root).expect("a strange address space");
        found.push((space, addr.0));
    });
    found
}

fn frame_at(machine: &Hosted, mm: &Space<'_>, addr: u64) -> Frame {
    let leaf = machine.probe(mm.root(), VirtAddr(addr)).expect("mapped");
    leaf.frame.add((addr - leaf.addr.0) / PAGE)
}

/// Invariant V3.
#[test]
fn children_and_moved_mappings_are_found() {
    small(|machine, manager| {
        manager.set_folio_policy(FolioPolicy::only(order(3)));
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, MIB)).unwrap();
            store(machine, mm, BASE, 1).unwrap();
            let stranger = manager.new_mm().unwrap();
            stranger.mmap(&anonymous(BASE, MIB)).unwrap();
            stranger.fault(VirtAddr(BASE), quire::vm::Access::Write).unwrap();
            let child = mm.fork().unwrap();
            let grandchild = child.fork().unwrap();
            let spaces = [mm, &child, &grandchild, &stranger];
            let frame = frame_at(machine, mm, BASE + 5 * PAGE);
            let at = BASE + 5 * PAGE;
            assert_eq!(found(manager, &spaces, frame), [(0, at), (1, at), (2, at)]);
            let (from, to) = (VirtAddr(BASE + 4 * PAGE), VirtAddr(BASE + 8 * MIB));
            child.mremap(from, 3 * PAGE, 3 * PAGE, Remap::Fixed(to)).unwrap();
            assert_eq!(found(manager, &spaces, frame), [(0, at), (1, to.0 + PAGE), (2, at)]);
            let moved = child.fork().unwrap();
            let spaces = [mm, &child, &grandchild, &stranger, &moved];
            assert_eq!(
                found(manager, &spaces, frame),
                [(0, at), (1, to.0 + PAGE), (2, at), (4, to.0 + PAGE)]
            );
            // A copy is another frame, and another folio.
            store(machine, mm, at, 2).unwrap();
            assert_eq!(found(manager, &spaces, frame).len(), 3);
            assert_eq!(found(manager, &spaces, frame_at(machine, mm, at)), [(0, at)]);
            grandchild.munmap(VirtAddr(at), PAGE).unwrap();
            assert_eq!(found(manager, &spaces, frame), [(1, to.0 + PAGE), (4, to.0 + PAGE)]);
            for mm in spaces {
                mm.validate().unwrap();
            }
        });
    });
}

#[test]
fn a_folio_under_large_leaves_is_split_in_every_address_space() {
    small(|machine, manager| {
        manager.set_folio_policy(FolioPolicy::only(Order::BLOCK).with_pmd_mapped(true));
        run(manager, |mm| {
            let base = 64 * MIB;
            mm.mmap(&anonymous(base, 2 * MIB)).unwrap();
            store(machine, mm, base + 77 * PAGE, 77).unwrap();
            let child = mm.fork().unwrap();
            let frame = frame_at(machine, mm, base);
            assert_eq!(manager.pages().split_raw(frame, order(4)), Err(SplitError::InUse));
            machine.set_failures(FailurePlan::From(0));
            assert_eq!(manager.split_folio(frame, order(4)), Err(SplitError::OutOfMemory));
            machine.set_failures(FailurePlan::Off);
            assert_eq!(manager.split_folio(frame, order(4)), Ok(0));
            assert_eq!(manager.stat(Stat::ThpSplitPage), 1);
            for at in [0, 77, 511] {
                assert_eq!(manager.pages().counts().mapcount(frame.add(at)), 2);
                let places = found(manager, &[mm, &child], frame.add(at));
                assert_eq!(places, [(0, base + at * PAGE), (1, base + at * PAGE)]);
            }
            assert_eq!(load(machine, mm, base + 77 * PAGE), Ok(77));
            store(machine, mm, base, 5).unwrap();
            manager.validate().unwrap();
            child.validate().unwrap();
            child.exit();
            mm.munmap(VirtAddr(base), MIB).unwrap();
            assert_eq!(load(machine, mm, base + 300 * PAGE), Ok(0));
        });
    });
}

/// Mappings that were moved and moved back, touched afterwards, grown, merged and forked.
#[test]
fn pages_of_moved_mappings_are_found_wherever_they_come_from() {
    small(|machine, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, 8 * PAGE)).unwrap();
            store(machine, mm, BASE, 1).unwrap();
            let (first, second) = (BASE + 4 * MIB, BASE + 9 * MIB);
            let to = |from: u64, pages, to| {
                mm.mremap(VirtAddr(from), 8 * PAGE, pages * PAGE, Remap::Fixed(VirtAddr(to))).unwrap()
            };
            let is_found = |addr: u64| {
                let frame = frame_at(machine, mm, addr);
                assert_eq!(found(manager, &[mm], frame), [(0, addr)]);
                mm.validate().unwrap();
            };
            to(BASE, 8, first);
            store(machine, mm, first + 3 * PAGE, 2).unwrap();
            [first, first + 3 * PAGE].into_iter().for_each(is_found);
            // It grows while it moves, and its new end is touched.
            to(first, 12, second);
            store(machine, mm, second + 11 * PAGE, 3).unwrap();
            [second, second + 3 * PAGE, second + 11 * PAGE].into_iter().for_each(is_found);
            // Other pages are mapped at the old address.
            mm.mmap(&anonymous(BASE, 12 * PAGE)).unwrap();
            (0..12).for_each(|page| store(machine, mm, BASE + page * PAGE, 4).unwrap());
            [BASE, BASE + 3 * PAGE, second, second + 11 * PAGE].into_iter().for_each(is_found);
            // A neighbour that was never moved merges with the mapping.
            mm.mmap(&anonymous(second + 13 * PAGE, 3 * PAGE)).unwrap();
            store(machine, mm, second + 15 * PAGE, 7).unwrap();
            mm.mmap(&anonymous(second + 12 * PAGE, PAGE)).unwrap();
            assert_eq!(mm.mappings(), 2);
            store(machine, mm, second + 5 * PAGE, 5).unwrap();
            store(machine, mm, second + 13 * PAGE, 6).unwrap();
            [0, 5, 11, 13, 15].map(|page| second + page * PAGE).into_iter().for_each(is_found);
            let child = mm.fork().unwrap();
            let frame = frame_at(machine, mm, second + 3 * PAGE);
            assert_eq!(
                found(manager, &[mm, &child], frame),
                [(0, second + 3 * PAGE), (1, second + 3 * PAGE)]
            );
            child.exit();
        });
    });
}

/// A program that frees whole mappings, as libhugetlbfs does by `/proc/self/maps`, freed a neighbour with its own.
#[test]
fn a_mapping_that_stays_apart_joins_no_neighbour() {
    small(|_, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, 4 * PAGE)).unwrap();
            mm.mmap(&MapRequest { apart: true, ..anonymous(BASE + 4 * PAGE, 4 * PAGE) }).unwrap();
            mm.mmap(&MapRequest { apart: true, ..anonymous(BASE + 8 * PAGE, 4 * PAGE) }).unwrap();
            mm.mmap(&anonymous(BASE + 12 * PAGE, 4 * PAGE)).unwrap();
            assert_eq!(mm.mappings(), 4);
            mm.validate().unwrap();
        });
    });
}

/// A stack that was moved up by almost all of its address, and grows down by more than the rest.
#[test]
fn a_page_that_would_come_from_below_all_addresses_is_found() {
    small(|machine, manager| {
        run(manager, |mm| {
            let (low, high) = (16 * PAGE, BASE + 40 * PAGE);
            mm.mmap(&MapRequest { grows_down: true, ..anonymous(low, PAGE) }).unwrap();
            store(machine, mm, low, 1).unwrap();
            mm.mremap(VirtAddr(low), PAGE, PAGE, Remap::Fixed(VirtAddr(high))).unwrap();
            for page in [1, 16, 17, 40] {
                let addr = high - page * PAGE;
                store(machine, mm, addr, page).unwrap();
                assert_eq!(found(manager, &[mm], frame_at(machine, mm, addr)), [(0, addr)], "{page} down");
            }
            assert_eq!(mm.mappings(), 1);
            mm.validate().unwrap();
        });
    });
}

/// A mapping that moves takes its tables along or frees them, and a move that fails leaves none at its
/// target.
#[test]
fn moves_leave_no_tables_behind() {
    const GIB: u64 = 1 << 30;
    small(|machine, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, 8 * PAGE)).unwrap();
            (0..8).for_each(|page| store(machine, mm, BASE + page * PAGE, page).unwrap());
            let (tables, mut at) = (mm.rss().page_tables, BASE);
            for step in 1..=20 {
                // Every other move keeps the place in the table.
                let to = BASE + 2 * step * GIB + (step % 4 / 2) * PAGE;
                assert_eq!(
                    mm.mremap(VirtAddr(at), 8 * PAGE, 8 * PAGE, Remap::Fixed(VirtAddr(to))).unwrap().0,
                    to
                );
                assert_eq!(mm.rss().page_tables, tables, "step {step}");
                at = to;
            }
            for nth in 0.. {
                machine.set_failures(FailurePlan::Nth(nth));
                let moved = mm.mremap(VirtAddr(at), 8 * PAGE, 8 * PAGE, Remap::Fixed(VirtAddr(BASE + PAGE)));
                let failed = machine.allocations_failed();
                machine.set_failures(FailurePlan::Off);
                assert_eq!(mm.rss().page_tables, tables, "allocation {nth}");
                assert_eq!(moved.is_err(), failed > 0);
                if failed == 0 {
                    assert!(nth > 0, "it needs tables");
                    break;
                }
            }
            (0..8).for_each(|page| assert_eq!(load(machine, mm, BASE + (page + 1) * PAGE), Ok(page)));
        });
    });
}

/// The mappings of a page of a file are those that map it, and none that begins behind it.
#[test]
fn a_page_of_a_file_is_found_where_it_is_mapped() {
    small(|machine, manager| {
        run(manager, |mm| {
            let file = manager.shmem(2 * PAGE).unwrap();
            let backing = Backing::File { file: &file, page_offset: 1 };
            let request = MapRequest { backing, sharing: Sharing::Shared, ..anonymous(BASE, PAGE) };
            mm.mmap(&request).unwrap();
            store(machine, mm, BASE, 1).unwrap();
            let mut found = Vec::new();
            (0..3).for_each(|page| file.mappings(page, |root, addr| found.push((page, root, addr))));
            assert_eq!(found, [(1, mm.root(), VirtAddr(BASE))]);
        });
    });
}

/// A name stands for one file, however often it is opened, and for no other of the same bucket.
#[test]
fn a_name_is_one_file() {
    small(|machine, manager| {
        let names = || (0..600).map(FileId);
        names().for_each(|name| machine.files().set_size(name, PAGE));
        let [first, again] =
            [(); 2].map(|()| names().map(|name| manager.open(name).unwrap()).collect::<Vec<_>>());
        let numbers = |files: &[File<'_, Hosted>]| files.iter().map(File::number).collect::<Vec<_>>();
        assert_eq!(numbers(&first), numbers(&again));
        let mut all = numbers(&first);
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 600);
    });
}
