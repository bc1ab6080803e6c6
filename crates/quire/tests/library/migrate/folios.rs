//! One folio moves: its mappings, their rights, and its contents.

use hosted::raw::RawPages;
use hosted::{FailurePlan, Hosted, HostedConfig};
use quire::addr::{Frame, FrameRange, Order, VirtAddr};
use quire::error::MigrateError;
use quire::page_alloc::Gfp;
use quire::platform::FileId;
use quire::stats::Stat;
use quire::vm::{Access, Advice, Backing, FaultKind, File, FolioPolicy, MapRequest, Remap, Sharing};

use crate::migrate::support::{PAGE, find_frame, frame_at, head_of};
use crate::migrate::world::{
    FORKS, MIB, Manager, R, RW, Space, anonymous, load, run, small, store, with_forks,
};
use testkit::order;

const BASE: u64 = 0x1000_0000;

/// Moves the folio that is mapped at an address. Returns where it was.
fn moved(machine: &Hosted, manager: &Manager<'_>, mm: &Space<'_>, addr: u64) -> Frame {
    let frame = frame_at(machine, mm, addr);
    let head = head_of(manager.pages(), frame);
    manager.migrate(head).expect("nothing is in the way");
    assert_ne!(frame_at(machine, mm, addr), frame);
    assert_eq!(manager.pages().counts().mapcount(frame), 0, "the old frame is free");
    manager.validate().unwrap();
    mm.validate().unwrap();
    frame
}

fn flags_at(machine: &Hosted, mm: &Space<'_>, addr: u64) -> u64 {
    machine.probe(mm.root(), VirtAddr(addr)).expect("mapped").entry & !0x000f_ffff_ffff_f000
}

#[test]
fn a_page_keeps_contents_rights_and_history() {
    small(|machine, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, 16 * PAGE)).unwrap();
            for page in 0..16 {
                store(machine, mm, BASE + page * PAGE + 8, 100 + page).unwrap();
            }
            mm.mprotect(VirtAddr(BASE), PAGE, R).unwrap();
            mm.clear_soft_dirty(VirtAddr(BASE + PAGE), PAGE).unwrap();
            mm.write_protect_marked(VirtAddr(BASE + 2 * PAGE), PAGE).unwrap();
            mm.madvise(VirtAddr(BASE + 3 * PAGE), PAGE, Advice::Free).unwrap();
            let before: Vec<_> = (0..16).map(|page| flags_at(machine, mm, BASE + page * PAGE)).collect();
            let (rss, used) = (mm.rss(), manager.meminfo().frames.used);
            for page in 0..16 {
                let addr = BASE + page * PAGE;
                moved(machine, manager, mm, addr);
                assert_eq!(flags_at(machine, mm, addr), before[page as usize], "page {page}");
                assert_eq!(load(machine, mm, addr + 8), Ok(100 + page));
                assert_eq!(manager.pages().counts().mapcount(frame_at(machine, mm, addr)), 1);
            }
            assert_eq!((mm.rss(), manager.meminfo().frames.used), (rss, used));
            assert_eq!(manager.stat(Stat::PgmigrateSuccess), 16);
            store(machine, mm, BASE + 9 * PAGE, 1).unwrap();
            assert_eq!(manager.stat(Stat::CowCopy), 0, "it may be stored to as before");
        });
    });
}

#[test]
fn what_cannot_be_moved_is_said_so() {
    small(|machine, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, PAGE)).unwrap();
            load(machine, mm, BASE).unwrap();
            let zero = frame_at(machine, mm, BASE);
            let ours = manager.pages().alloc_raw(Gfp::USER, Order::FRAME).unwrap();
            for frame in [zero, ours, mm.root(), Frame(3), Frame(1 << 30)] {
                assert_eq!(manager.migrate(frame), Err(MigrateError::NotMovable), "{frame:?}");
            }
            store(machine, mm, BASE, 1).unwrap();
            let frame = frame_at(machine, mm, BASE);
            let folio = FrameRange::folio(frame, Order::FRAME);
            assert_eq!(manager.pages().frames().set_aside(frame), Some(Order::FRAME));
            assert_eq!(manager.migrate(frame), Err(MigrateError::NotMovable), "the folio is held");
            assert_eq!(manager.pages().release_raw(folio), 0);
            manager.pages().free_raw(ours, Order::FRAME).unwrap();
            moved(machine, manager, mm, BASE);
        });
    });
}

#[test]
fn the_page_right_behind_one_that_is_held_is_the_next_that_could_be_moved() {
    small(|machine, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, 16 * PAGE)).unwrap();
            (0..16).for_each(|page| store(machine, mm, BASE + page * PAGE, page).unwrap());
            let frames: Vec<_> = (0..16).map(|page| frame_at(machine, mm, BASE + page * PAGE)).collect();
            let held = *frames.iter().find(|frame| frames.contains(&frame.add(1))).expect("neighbours");
            let (pages, number) = (manager.pages(), held.block());
            assert_eq!(pages.frames().next_movable(number, held.index_in_block()), Some(held));
            assert_eq!(pages.frames().set_aside(held), Some(Order::FRAME));
            assert_eq!(pages.frames().next_movable(number, held.index_in_block()), Some(held.add(1)));
            assert_eq!(pages.release_raw(FrameRange::folio(held, Order::FRAME)), 0);
        });
    });
}

#[test]
fn a_family_sees_the_same_bytes_and_copies_as_before() {
    for fork in FORKS {
        with_forks(HostedConfig::new(64 * MIB), fork, |machine, manager| {
            run(manager, |mm| {
                mm.mmap(&anonymous(BASE, 8 * PAGE)).unwrap();
                (0..8).for_each(|page| store(machine, mm, BASE + page * PAGE, page).unwrap());
                let child = mm.fork().unwrap();
                let (from, to) = (VirtAddr(BASE + 2 * PAGE), VirtAddr(BASE + 8 * MIB));
                child.mremap(from, 2 * PAGE, 2 * PAGE, Remap::Fixed(to)).unwrap();
                let grandchild = child.fork().unwrap();
                for page in 0..8 {
                    let frame = frame_at(machine, mm, BASE + page * PAGE);
                    moved(machine, manager, mm, BASE + page * PAGE);
                    let at =
                        if (2..4).contains(&page) { to.0 + (page - 2) * PAGE } else { BASE + page * PAGE };
                    let now = frame_at(machine, mm, BASE + page * PAGE);
                    assert_ne!(now, frame);
                    assert_eq!(frame_at(machine, &child, at), now);
                    assert_eq!(frame_at(machine, &grandchild, at), now);
                    assert_eq!(manager.pages().counts().mapcount(now), 3, "each has its own table now");
                }
                store(machine, mm, BASE + 3 * PAGE, 33).unwrap();
                assert_eq!(manager.stat(Stat::CowCopy), 1);
                mm.switch_out();
                child.switch_in();
                assert_eq!(load(machine, &child, to.0 + PAGE), Ok(3));
                store(machine, &child, BASE, 44).unwrap();
                child.switch_out();
                mm.switch_in();
                assert_eq!(load(machine, mm, BASE), Ok(0));
                assert_eq!(load(machine, mm, BASE + 3 * PAGE), Ok(33));
                for mm in [child, grandchild] {
                    mm.validate().unwrap();
                    mm.exit();
                }
                let kind = mm.fault(VirtAddr(BASE + PAGE), Access::Write).unwrap().kind;
                assert_eq!(kind, FaultKind::Reuse, "the last one keeps it");
            });
        });
    }
}

#[test]
fn folios_of_every_order_stay_folios() {
    for number in 0..=9 {
        for pmd in [false, true] {
            small(|machine, manager| folio_stays(machine, manager, order(number), pmd));
        }
    }
}

fn folio_stays(machine: &Hosted, manager: &Manager<'_>, order: Order, pmd: bool) {
    manager.set_folio_policy(FolioPolicy::only(order).with_pmd_mapped(pmd));
    run(manager, |mm| {
        let pages = order.frames();
        let base = 64 * MIB;
        mm.mmap(&anonymous(base, 4 * MIB)).unwrap();
        for page in 0..pages {
            store(machine, mm, base + page * PAGE + 16, page ^ 77).unwrap();
        }
        let child = mm.fork().unwrap();
        store(machine, mm, base + (pages - 1) * PAGE + 16, 5).unwrap();
        if pages > 4 {
            child.munmap(VirtAddr(base + PAGE), 2 * PAGE).unwrap();
        }
        let last = frame_at(machine, mm, base + (pages - 1) * PAGE);
        let head = frame_at(machine, &child, base);
        manager.migrate(head).unwrap();
        let now = frame_at(machine, &child, base);
        assert!(head != now || pages == 1 && head == last);
        assert!(manager.pages().frames().folio_rest(now) >= pages, "it came apart");
        for page in 1..pages - 1 {
            assert_eq!(frame_at(machine, mm, base + page * PAGE), now.add(page));
        }
        for page in 0..pages {
            let expected = if page == pages - 1 { 5 } else { page ^ 77 };
            assert_eq!(load(machine, mm, base + page * PAGE + 16), Ok(expected));
        }
        mm.switch_out();
        child.switch_in();
        for page in (0..pages).filter(|page| pages <= 4 || !(1..3).contains(page)) {
            assert_eq!(load(machine, &child, base + page * PAGE + 16), Ok(page ^ 77));
        }
        child.validate().unwrap();
        manager.validate().unwrap();
        child.switch_out();
        mm.switch_in();
        child.exit();
    });
}

#[test]
fn a_large_leaf_moves_as_one_and_stays_writable() {
    small(|machine, manager| {
        manager.set_folio_policy(FolioPolicy::only(Order::BLOCK).with_pmd_mapped(true));
        run(manager, |mm| {
            let base = 64 * MIB;
            mm.mmap(&anonymous(base, 2 * MIB)).unwrap();
            (0..512).for_each(|page| store(machine, mm, base + page * PAGE, page).unwrap());
            let flags = flags_at(machine, mm, base);
            let flushes = manager.stat(Stat::NrTlbLocalFlushOne) + manager.stat(Stat::NrTlbLocalFlushAll);
            moved(machine, manager, mm, base);
            let after = manager.stat(Stat::NrTlbLocalFlushOne) + manager.stat(Stat::NrTlbLocalFlushAll);
            assert_eq!(after - flushes, 1);
            assert_eq!(flags_at(machine, mm, base), flags);
            assert_eq!(manager.stat(Stat::ThpMigrationSuccess), 1);
            (0..512).for_each(|page| assert_eq!(load(machine, mm, base + page * PAGE), Ok(page)));
            let faults = manager.stat(Stat::Pgfault);
            store(machine, mm, base + PAGE, 3).unwrap();
            assert_eq!(manager.stat(Stat::Pgfault), faults);
        });
    });
}

/// Where no folio of its size is free, a folio is split, and its pages move one by one.
#[test]
fn a_folio_moves_in_pieces_where_only_pieces_are_free() {
    small(|machine, manager| {
        manager.set_folio_policy(FolioPolicy::only(Order::BLOCK));
        run(manager, |mm| {
            let base = 64 * MIB;
            mm.mmap(&anonymous(base, 2 * MIB)).unwrap();
            (0..512).for_each(|page| store(machine, mm, base + page * PAGE, page).unwrap());
            let hoard: Vec<_> =
                std::iter::from_fn(|| manager.pages().alloc(Gfp::USER, Order::FRAME).ok()).collect();
            let (freed, kept): (Vec<_>, Vec<_>) =
                hoard.into_iter().partition(|folio| folio.frame().0 % 2 == 0);
            freed.into_iter().for_each(|folio| manager.pages().free(folio).unwrap());
            let stats = [
                Stat::ThpMigrationSplit,
                Stat::ThpMigrationSuccess,
                Stat::PgmigrateSuccess,
                Stat::PgmigrateFail,
            ];
            assert_eq!(manager.migrate(frame_at(machine, mm, base)), Ok(512));
            assert_eq!(stats.map(|stat| manager.stat(stat)), [1, 0, 512, 0]);
            (0..512).for_each(|page| assert_eq!(load(machine, mm, base + page * PAGE), Ok(page)));
            kept.into_iter().for_each(|folio| manager.pages().free(folio).unwrap());
        });
    });
}

fn shared<'a>(addr: u64, file: &'a File<'_, Hosted>, pages: u64) -> MapRequest<'a> {
    let backing = Backing::File { file, page_offset: 0 };
    MapRequest { backing, sharing: Sharing::Shared, ..anonymous(addr, pages * PAGE) }
}

#[test]
fn pages_of_shmem_move_under_all_their_mappings() {
    small(|machine, manager| {
        run(manager, |mm| {
            let file = manager.shmem(8 * PAGE).unwrap();
            mm.mmap(&shared(BASE, &file, 8)).unwrap();
            mm.mmap(&shared(BASE + MIB, &file, 8)).unwrap();
            let other = manager.new_mm().unwrap();
            other.mmap(&MapRequest { prot: RW, ..shared(BASE, &file, 8) }).unwrap();
            for page in 0..8 {
                store(machine, mm, BASE + page * PAGE, 7 + page).unwrap();
                other.fault(VirtAddr(BASE + page * PAGE), Access::Read).unwrap();
            }
            mm.mlock(VirtAddr(BASE + MIB), PAGE, false).unwrap();
            for page in 0..8 {
                let frame = frame_at(machine, mm, BASE + page * PAGE);
                assert_eq!(manager.migrate(frame), Ok(1));
                assert_eq!(manager.pages().counts().mapcount(frame), 0);
                assert_eq!(find_frame(machine, &other, BASE + page * PAGE), None, "comes back by a fault");
                assert_eq!(find_frame(machine, mm, BASE + MIB + page * PAGE).is_some(), page == 0);
            }
            assert_eq!(file.resident(), 8);
            for page in 0..8 {
                assert_eq!(load(machine, mm, BASE + page * PAGE), Ok(7 + page));
                store(machine, mm, BASE + MIB + page * PAGE, 9).unwrap();
                assert_eq!(load(machine, mm, BASE + page * PAGE), Ok(9));
            }
            other.validate().unwrap();
            other.exit();
        });
    });
}

/// A page that could be read again is dropped for want of a frame, but not where it is locked.
#[test]
fn a_locked_page_of_a_file_stays_when_there_is_no_frame_for_it() {
    small(|machine, manager| {
        machine.files().set_size(FileId(3), 2 * PAGE);
        run(manager, |mm| {
            let file = manager.open(FileId(3)).unwrap();
            mm.mmap(&shared(BASE, &file, 2)).unwrap();
            mm.mlock(VirtAddr(BASE), PAGE, false).unwrap();
            mm.fault(VirtAddr(BASE + PAGE), Access::Read).unwrap();
            let [locked, other] = [0, 1].map(|page| frame_at(machine, mm, BASE + page * PAGE));
            machine.set_failures(FailurePlan::From(0));
            let hoard: Vec<_> =
                std::iter::from_fn(|| manager.pages().alloc(Gfp::USER, Order::FRAME).ok()).collect();
            let counts = || [Stat::PgmigrateSuccess, Stat::PgmigrateFail].map(|stat| manager.stat(stat));
            assert_eq!(manager.migrate(locked), Err(MigrateError::OutOfMemory));
            assert_eq!(counts(), [0, 1]);
            assert_eq!(manager.migrate(other), Ok(1), "it is dropped");
            assert_eq!(counts(), [1, 1]);
            machine.set_failures(FailurePlan::Off);
            assert_eq!((find_frame(machine, mm, BASE), file.resident()), (Some(locked), 1));
            hoard.into_iter().for_each(|folio| manager.pages().free(folio).unwrap());
        });
    });
}

#[test]
fn pages_of_files_stay_dirty_and_are_written_from_their_new_frames() {
    let machine = HostedConfig::new(64 * MIB);
    crate::migrate::world::with_manager(machine, |machine, manager| {
        let name = FileId(3);
        machine.files().set_size(name, 4 * PAGE);
        run(manager, |mm| {
            let file = manager.open(name).unwrap();
            mm.mmap(&shared(BASE, &file, 4)).unwrap();
            let private = MapRequest { sharing: Sharing::Private, ..shared(BASE + MIB, &file, 4) };
            mm.mmap(&private).unwrap();
            for page in 0..4 {
                store(machine, mm, BASE + page * PAGE, page).unwrap();
                store(machine, mm, BASE + MIB + page * PAGE, 50 + page).unwrap();
            }
            let copies: Vec<_> = (0..4).map(|page| frame_at(machine, mm, BASE + MIB + page * PAGE)).collect();
            for page in 0..4 {
                assert_eq!(manager.migrate(frame_at(machine, mm, BASE + page * PAGE)), Ok(1));
            }
            assert_eq!((file.dirty(), file.resident()), (4, 4));
            for (page, copy) in (0..4).zip(copies) {
                assert_eq!(frame_at(machine, mm, BASE + MIB + page * PAGE), copy, "private copies stay");
                moved(machine, manager, mm, BASE + MIB + page * PAGE);
                assert_eq!(load(machine, mm, BASE + MIB + page * PAGE), Ok(50 + page));
            }
            file.sync().unwrap();
            let written = machine.files().written_pages(name);
            assert_eq!(written.len(), 4);
            for (page, bytes) in written {
                assert_eq!(bytes[..8], page.to_le_bytes());
            }
        });
    });
}
