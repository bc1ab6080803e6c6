//! Files of huge pages: sharing, private copies, sizes, holes, limits of file systems, and charges.

use hosted::FailurePlan;
use quire::addr::VirtAddr;
use quire::arch::Protection;
use quire::error::{FaultError, MmError};
use quire::hugetlb::{
    Charge, GroupEvents, HugeFsError, HugeFsInfo, HugeFsLimits, HugeGroup, HugeSize::Size2M,
};
use quire::limits::HUGE_BATCH;
use quire::vm::{Advice, MapRequest, Placement, Sharing};

use crate::hugetlb::world::{
    BASE, HUGE, Manager, R, fork, free_and_promised, load, of_file, private, run, store, with_huge, within,
};

use Sharing::{Private, Shared};

#[test]
fn a_file_is_the_same_in_all_its_mappings() {
    with_huge(6, |machine, manager| {
        let file = manager.huge_file(Size2M, 4 * HUGE).unwrap();
        run(manager, |mm| {
            mm.mmap(&of_file(&file, Shared, BASE, (0, 4))).unwrap();
            mm.mmap(&of_file(&file, Shared, BASE + 16 * HUGE, (1, 3))).unwrap();
            assert_eq!(free_and_promised(manager), (6, 4), "once for each page");
            store(machine, mm, BASE + HUGE, 1).unwrap();
            assert_eq!(load(machine, mm, BASE + 16 * HUGE), Ok(1));
            mm.munmap(VirtAddr(BASE), 4 * HUGE).unwrap();
            mm.munmap(VirtAddr(BASE + 16 * HUGE), 3 * HUGE).unwrap();
            assert_eq!(free_and_promised(manager), (5, 3), "reservations are the file's");
        });
        assert_eq!(file.huge_pages(), (1, 3));
        run(manager, |mm| {
            mm.mmap(&of_file(&file, Shared, BASE, (0, 4))).unwrap();
            assert_eq!(load(machine, mm, BASE + HUGE), Ok(1), "it outlives its mappings");
        });
        drop(file);
        assert_eq!(free_and_promised(manager), (6, 0));
    });
}

#[test]
fn private_mappings_see_the_file_until_they_store() {
    with_huge(6, |machine, manager| {
        let file = manager.huge_file(Size2M, 3 * HUGE).unwrap();
        run(manager, |mm| {
            mm.mmap(&of_file(&file, Shared, BASE, (0, 3))).unwrap();
            store(machine, mm, BASE, 1).unwrap();
            store(machine, mm, BASE + HUGE, 2).unwrap();
            let own = BASE + 16 * HUGE;
            mm.mmap(&of_file(&file, Private, own, (0, 3))).unwrap();
            assert_eq!(free_and_promised(manager), (4, 4));
            assert_eq!(load(machine, mm, own), Ok(1));
            store(machine, mm, BASE, 3).unwrap();
            assert_eq!(load(machine, mm, own), Ok(3));
            // After a load, and without one.
            store(machine, mm, own + 8, 4).unwrap();
            store(machine, mm, own + HUGE + 8, 5).unwrap();
            assert_eq!(free_and_promised(manager), (2, 2));
            store(machine, mm, BASE, 6).unwrap();
            assert_eq!((load(machine, mm, own), load(machine, mm, own + 8)), (Ok(3), Ok(4)));
            assert_eq!((load(machine, mm, own + HUGE), load(machine, mm, own + HUGE + 8)), (Ok(2), Ok(5)));
            assert_eq!(load(machine, mm, BASE + 8), Ok(0), "the file has none of it");
            // A page that the file lacks belongs to the private mapping at once.
            assert_eq!(load(machine, mm, own + 2 * HUGE), Ok(0));
            assert_eq!((free_and_promised(manager), file.huge_pages()), ((1, 1), (2, 1)));
            // After `MADV_DONTNEED` the file's page is visible again.
            mm.madvise(VirtAddr(own), HUGE, Advice::DontNeed).unwrap();
            assert_eq!(load(machine, mm, own), Ok(6));
            // The child inherits the file's pages, and a store on either side copies them.
            let child = fork(mm);
            store(machine, mm, own, 7).unwrap();
            mm.switch_out();
            within(&child, || assert_eq!(load(machine, &child, own), Ok(6)));
            mm.switch_in();
        });
    });
}

#[test]
fn sizes_end_mappings_and_pages_behind_go_back() {
    with_huge(8, |machine, manager| {
        let file = manager.huge_file(Size2M, 4 * HUGE).unwrap();
        run(manager, |mm| {
            let own = BASE + 16 * HUGE;
            mm.mmap(&of_file(&file, Shared, BASE, (0, 4))).unwrap();
            mm.mmap(&MapRequest { prot: R, ..of_file(&file, Private, own, (0, 4)) }).unwrap();
            mm.mprotect(VirtAddr(own), 4 * HUGE, crate::hugetlb::world::RW).unwrap();
            (0..3).for_each(|page| store(machine, mm, BASE + page * HUGE, page + 1).unwrap());
            store(machine, mm, own + 2 * HUGE, 9).unwrap();
            let child = fork(mm);
            assert_eq!(free_and_promised(manager), (4, 1 + 3));
            assert_eq!(file.truncate(HUGE + 4096), Err(MmError::Invalid));
            file.truncate(HUGE).unwrap();
            // Pages and reservations behind the end are freed. The private copy's reservation holds again,
            // though a child had the copy.
            assert_eq!(free_and_promised(manager), (7, 4));
            assert_eq!(file.huge_pages(), (1, 0));
            assert_eq!(load(machine, mm, BASE + HUGE), Err(FaultError::BeyondEnd));
            assert_eq!(store(machine, mm, own + 2 * HUGE, 1), Err(FaultError::BeyondEnd));
            assert_eq!(load(machine, mm, BASE), Ok(1));
            assert_eq!(mm.rss().huge, 512);
            file.truncate(4 * HUGE).unwrap();
            assert_eq!(load(machine, mm, BASE + HUGE), Ok(0));
            store(machine, mm, own + 2 * HUGE, 1).unwrap();
            mm.switch_out();
            within(&child, || assert_eq!(load(machine, &child, own + 2 * HUGE), Ok(0)));
            mm.switch_in();
        });
    });
}

/// Truncation ends reservations that no fault has used, as it frees pages.
#[test]
fn others_run_after_each_batch_of_pages_that_a_file_gives_back() {
    let pages = HUGE_BATCH as u64 + 2;
    with_huge(pages, |machine, manager| {
        let file = manager.huge_file(Size2M, pages * HUGE).unwrap();
        run(manager, |mm| {
            mm.mmap(&of_file(&file, Shared, BASE, (0, pages))).unwrap();
            mm.munmap(VirtAddr(BASE), pages * HUGE).unwrap();
            assert_eq!(file.huge_pages(), (0, pages));
            let points = machine.counters().reschedule_points;
            file.truncate(0).unwrap();
            assert_eq!(machine.counters().reschedule_points, points + 1);
            assert_eq!(free_and_promised(manager), (pages, 0));
        });
    });
}

/// Regression: one address space maps the truncated pages twice. Unmapping the second waited for the busy
/// entries that unmapping the first had left to be flushed.
#[test]
fn pages_that_are_mapped_twice_go_as_well() {
    with_huge(5, |machine, manager| {
        let file = manager.huge_file(Size2M, 2 * HUGE).unwrap();
        run(manager, |mm| {
            for (at, sharing) in [(0, Private), (2, Private), (8, Shared)] {
                mm.mmap(&of_file(&file, sharing, BASE + at * HUGE, (1, 1))).unwrap();
                mm.mmap(&of_file(&file, sharing, BASE + (at + 1) * HUGE, (1, 1))).unwrap();
                (at..at + 2).for_each(|place| store(machine, mm, BASE + place * HUGE, 1).unwrap());
            }
            file.truncate(HUGE).unwrap();
            assert_eq!(free_and_promised(manager), (5, 4));
        });
    });
}

/// As on hugetlbfs, a writable mapping extends its file to its own length.
#[test]
fn a_mapping_makes_its_file_longer() {
    with_huge(4, |machine, manager| {
        let file = manager.huge_file(Size2M, 0).unwrap();
        run(manager, |mm| {
            mm.mmap(&MapRequest { prot: R, ..of_file(&file, Shared, BASE, (0, 1)) }).unwrap();
            assert_eq!(load(machine, mm, BASE), Err(FaultError::BeyondEnd));
            mm.mmap(&of_file(&file, Shared, BASE + 8 * HUGE, (2, 1))).unwrap();
            assert_eq!(load(machine, mm, BASE), Ok(0));
            store(machine, mm, BASE + 8 * HUGE, 1).unwrap();
            // A part that starts off a page.
            let mut odd = of_file(&file, Shared, BASE + 12 * HUGE, (0, 1));
            odd.backing = quire::vm::Backing::File { file: &file, page_offset: 1 };
            assert_eq!(mm.mmap(&odd), Err(MmError::Invalid));
            let other = MapRequest {
                huge: Some(quire::hugetlb::HugeSize::Size1G),
                ..of_file(&file, Shared, BASE, (0, 1))
            };
            assert_eq!(mm.mmap(&other), Err(MmError::Invalid), "a file has the pages that it has");
        });
    });
}

#[test]
fn holes_give_back_whole_pages_and_clear_the_rest() {
    with_huge(6, |machine, manager| {
        let file = manager.huge_file(Size2M, 4 * HUGE).unwrap();
        run(manager, |mm| {
            let own = BASE + 16 * HUGE;
            mm.mmap(&of_file(&file, Shared, BASE, (0, 4))).unwrap();
            mm.mmap(&of_file(&file, Private, own, (1, 1))).unwrap();
            store(machine, mm, own, 9).unwrap();
            for page in 0..3 {
                for word in [0, 4096, HUGE / 2, HUGE - 8] {
                    store(machine, mm, BASE + page * HUGE + word, 1).unwrap();
                }
            }
            assert_eq!(free_and_promised(manager), (2, 1));
            file.punch_hole(4099..2 * HUGE + 4096).unwrap();
            assert_eq!(file.huge_pages(), (2, 1));
            assert_eq!(free_and_promised(manager), (4, 2), "the private copy went, and is reserved again");
            assert_eq!(load(machine, mm, own), Ok(0));
            let word = |at: u64| load(machine, mm, BASE + at).unwrap();
            assert_eq!([0, 4096, HUGE / 2, HUGE - 8].map(word), [1, 1, 0, 0], "byte for byte");
            assert_eq!([2 * HUGE, 2 * HUGE + 4096].map(word), [0, 1]);
            // A hole inside one page, and one over a reservation alone.
            file.punch_hole(2 * HUGE + 4097..2 * HUGE + 8192).unwrap();
            assert_eq!(word(2 * HUGE + 4096), 1);
            file.punch_hole(2 * HUGE + HUGE / 2..4 * HUGE).unwrap();
            assert_eq!([HUGE / 2, HUGE - 8].map(|at| word(2 * HUGE + at)), [0, 0]);
            // A store into a hole takes a page that is not reserved.
            assert_eq!(free_and_promised(manager), (3, 0));
            store(machine, mm, BASE + HUGE, 5).unwrap();
            assert_eq!(free_and_promised(manager), (2, 0));
        });
        let backwards = std::ops::Range { start: HUGE + 5, end: HUGE + 3 };
        for range in [HUGE..HUGE, backwards] {
            assert_eq!(file.punch_hole(range.clone()), Err(MmError::Invalid));
            assert_eq!(file.allocate(range), Err(MmError::Invalid));
        }
        let shmem = manager.shmem(4096).unwrap();
        assert_eq!(shmem.punch_hole(0..4096), Ok(()), "shared memory has holes too");
    });
}

#[test]
fn pages_are_allocated_ahead() {
    with_huge(3, |machine, manager| {
        let file = manager.huge_file(Size2M, 0).unwrap();
        file.allocate(HUGE + 1..2 * HUGE + 1).unwrap();
        assert_eq!((file.huge_pages(), free_and_promised(manager)), ((2, 0), (1, 0)));
        assert_eq!(file.allocate(0..5 * HUGE), Err(MmError::NoMemory));
        assert_eq!((file.huge_pages(), free_and_promised(manager)), ((3, 0), (0, 0)), "earlier pages stay");
        run(manager, |mm| {
            mm.mmap(&of_file(&file, Shared, BASE, (0, 3))).unwrap();
            assert_eq!(load(machine, mm, BASE + 2 * HUGE), Ok(0));
            assert_eq!(mm.mmap(&of_file(&file, Shared, BASE, (3, 1))), Err(MmError::NoMemory));
            assert_eq!(load(machine, mm, BASE), Ok(0), "the present page stays");
        });
    });
}

fn used_and_kept(fs: &quire::vm::HugeFs<'_, hosted::Hosted>) -> (u64, u64) {
    let HugeFsInfo { used, kept, .. } = fs.info();
    (used, kept)
}

#[test]
fn a_file_system_has_no_more_than_its_size_and_no_less_than_its_minimum() {
    with_huge(10, |machine, manager| {
        let limits = HugeFsLimits { max: 4, min: 2 };
        assert_eq!(
            manager.huge_fs(Size2M, HugeFsLimits { max: 1, min: 2 }).err(),
            Some(HugeFsError::BadLimits)
        );
        assert_eq!(
            manager.huge_fs(Size2M, HugeFsLimits { min: 11, ..HugeFsLimits::default() }).err(),
            Some(HugeFsError::NoPages)
        );
        let fs = manager.huge_fs(Size2M, limits).unwrap();
        assert_eq!((free_and_promised(manager), used_and_kept(&fs)), ((10, 2), (0, 2)));
        let file = fs.create(8 * HUGE).unwrap();
        run(manager, |mm| {
            mm.mmap(&of_file(&file, Shared, BASE, (0, 3))).unwrap();
            assert_eq!((free_and_promised(manager), used_and_kept(&fs)), ((10, 3), (3, 0)));
            assert_eq!(mm.mmap(&of_file(&file, Shared, BASE + 8 * HUGE, (3, 2))), Err(MmError::NoMemory));
            assert_eq!((free_and_promised(manager), used_and_kept(&fs)), ((10, 3), (3, 0)));
            let loose = MapRequest { noreserve: true, ..of_file(&file, Shared, BASE + 8 * HUGE, (3, 2)) };
            mm.mmap(&loose).unwrap();
            store(machine, mm, BASE + 8 * HUGE, 1).unwrap();
            assert_eq!(store(machine, mm, BASE + 9 * HUGE, 1), Err(FaultError::NoHugePage));
            assert_eq!((free_and_promised(manager), used_and_kept(&fs)), ((9, 3), (4, 0)));
            (0..3).for_each(|page| store(machine, mm, BASE + page * HUGE, 1).unwrap());
            file.truncate(HUGE).unwrap();
            assert_eq!(
                (free_and_promised(manager), used_and_kept(&fs)),
                ((9, 1), (1, 1)),
                "some are kept again"
            );
            // Private mappings count as well, used or not.
            mm.mmap(&of_file(&file, Private, BASE + 16 * HUGE, (0, 3))).unwrap();
            store(machine, mm, BASE + 16 * HUGE, 1).unwrap();
            assert_eq!((free_and_promised(manager), used_and_kept(&fs)), ((8, 2), (4, 0)));
            assert_eq!(mm.mmap(&of_file(&file, Private, BASE + 32 * HUGE, (0, 1))), Err(MmError::NoMemory));
        });
        assert_eq!((free_and_promised(manager), used_and_kept(&fs)), ((9, 1), (1, 1)));
        // Dropping a handle keeps its files.
        drop(fs);
        assert_eq!(free_and_promised(manager), (9, 0));
        drop(file);
    });
}

/// A window of descriptors flushes all CPUs before such a page is freed: the task may hold no lock then.
#[test]
fn surplus_pages_that_were_kept_for_a_file_system_leave_with_it() {
    with_huge(2, |_, manager| {
        manager.huge_pools().set_overcommit(manager.pages(), Size2M, 1);
        let fs = manager.huge_fs(Size2M, HugeFsLimits { max: 3, min: 3 }).unwrap();
        assert_eq!((free_and_promised(manager), used_and_kept(&fs)), ((3, 3), (0, 3)));
        drop(fs);
        assert_eq!(free_and_promised(manager), (2, 0));
    });
}

/// The whole minimum is reserved for the file system again after a private mapping has used all of it.
#[test]
fn what_goes_back_is_kept_for_its_file_system() {
    with_huge(2, |machine, manager| {
        let fs = manager.huge_fs(Size2M, HugeFsLimits { max: 2, min: 2 }).unwrap();
        let file = fs.create(2 * HUGE).unwrap();
        for noreserve in [false, true] {
            run(manager, |mm| {
                mm.mmap(&MapRequest { noreserve, ..of_file(&file, Private, BASE, (0, 2)) }).unwrap();
                (0..2).for_each(|page| store(machine, mm, BASE + page * HUGE, 1).unwrap());
                assert_eq!((free_and_promised(manager), used_and_kept(&fs)), ((0, 0), (2, 0)));
            });
            assert_eq!((free_and_promised(manager), used_and_kept(&fs)), ((2, 2), (0, 2)));
        }
    });
}

#[test]
fn groups_pay_for_what_their_processes_use_and_are_promised() {
    with_huge(8, |machine, manager| {
        let pools = manager.huge_pools();
        let group = pools.make_group(manager.pages(), HugeGroup::NONE).unwrap();
        let charged = || {
            [Charge::Usage, Charge::Reservation].map(|kind| pools.group_counters(group, Size2M, kind).current)
        };
        pools.set_group_max(group, Size2M, Charge::Usage, 2);
        pools.set_group_max(group, Size2M, Charge::Reservation, 4);
        let file = manager.huge_file(Size2M, 2 * HUGE).unwrap();
        run(manager, |mm| {
            mm.set_huge_group(group);
            mm.mmap(&private(BASE, 3)).unwrap();
            assert_eq!(charged(), [0, 3]);
            assert_eq!(mm.mmap(&private(BASE + 8 * HUGE, 2)), Err(MmError::NoMemory));
            mm.mmap(&of_file(&file, Shared, BASE + 8 * HUGE, (0, 1))).unwrap();
            assert_eq!(charged(), [0, 4]);
            (0..2).for_each(|page| store(machine, mm, BASE + page * HUGE, 1).unwrap());
            assert_eq!(store(machine, mm, BASE + 2 * HUGE, 1), Err(FaultError::NoHugePage));
            assert_eq!(pools.group_events(group, Size2M), GroupEvents { all: 2, own: 2 });
            assert_eq!(charged(), [2, 4]);
            // A child belongs to the same group.
            let child = fork(mm);
            mm.switch_out();
            let stored = within(&child, || store(machine, &child, BASE, 2));
            assert_eq!(stored, Err(FaultError::NoHugePage));
            mm.switch_in();
            drop(child);
            mm.madvise(VirtAddr(BASE), HUGE, Advice::DontNeed).unwrap();
            assert_eq!(charged(), [1, 4]);
            store(machine, mm, BASE + 8 * HUGE, 1).unwrap();
            mm.munmap(VirtAddr(BASE), 3 * HUGE).unwrap();
            assert_eq!(charged(), [1, 1]);
        });
        // The group that first touched a page of the file is charged until the page is freed.
        assert_eq!(charged(), [1, 1]);
        drop(file);
        assert_eq!(charged(), [0, 0]);
    });
}

/// A process that changes its group leaves its charges behind: the old group stays charged for reservations
/// until they end, and the new group is charged for pages that are touched from then on.
#[test]
fn reservations_charge_the_old_group_and_new_pages_the_new_one() {
    with_huge(3, |machine, manager| {
        let pools = manager.huge_pools();
        let [first, second] = [(); 2].map(|()| pools.make_group(manager.pages(), HugeGroup::NONE).unwrap());
        let charged = |group| {
            [Charge::Usage, Charge::Reservation].map(|kind| pools.group_counters(group, Size2M, kind).current)
        };
        run(manager, |mm| {
            mm.set_huge_group(first);
            mm.mmap(&private(BASE, 3)).unwrap();
            store(machine, mm, BASE, 1).unwrap();
            mm.set_huge_group(second);
            store(machine, mm, BASE + HUGE, 1).unwrap();
            assert_eq!([charged(first), charged(second)], [[1, 3], [1, 0]]);
            mm.munmap(VirtAddr(BASE), 2 * HUGE).unwrap();
            assert_eq!([charged(first), charged(second)], [[0, 1], [0, 0]]);
        });
        assert_eq!([charged(first), charged(second)], [[0; 2]; 2]);
    });
}

/// Tries a call with each allocation failing in turn until it succeeds.
fn each_failure(machine: &hosted::Hosted, mut call: impl FnMut() -> bool) {
    for index in 0..200 {
        machine.set_failures(FailurePlan::From(index));
        let done = call();
        machine.set_failures(FailurePlan::Off);
        if done {
            return;
        }
    }
    panic!("it never succeeds");
}

#[test]
fn a_mapping_that_fails_has_promised_nothing() {
    with_huge(70, |machine, manager| {
        let file = manager.huge_file(Size2M, 0).unwrap();
        run(manager, |mm| {
            for (sharing, noreserve) in [(Shared, false), (Private, false), (Shared, true)] {
                each_failure(machine, || {
                    let before = free_and_promised(manager);
                    let request = MapRequest { noreserve, ..of_file(&file, sharing, BASE, (1, 65)) };
                    let made = mm.mmap(&request);
                    assert!(made.is_ok() || free_and_promised(manager) == before, "{made:?}");
                    made.is_ok()
                });
                each_failure(machine, || mm.munmap(VirtAddr(BASE), 65 * HUGE).is_ok());
                file.truncate(0).unwrap();
                assert_eq!(free_and_promised(manager), (70, 0));
            }
            let hint = MapRequest { placement: Placement::FixedNoReplace, ..private(BASE, 2) };
            mm.mmap(&hint).unwrap();
            assert_eq!(mm.mmap(&hint), Err(MmError::Exists));
            let shared =
                MapRequest { placement: Placement::FixedNoReplace, ..of_file(&file, Shared, BASE, (0, 3)) };
            assert_eq!(mm.mmap(&shared), Err(MmError::Exists));
            assert_eq!(free_and_promised(manager), (70, 2));
        });
    });
}

/// The reservations of a mapping stay with its file: a later mapping that fails takes back only its own.
#[test]
fn a_mapping_that_fails_leaves_earlier_promises_alone() {
    with_huge(6, |_, manager| {
        let file = manager.huge_file(Size2M, 0).unwrap();
        run(manager, |mm| {
            mm.mmap(&of_file(&file, Shared, BASE, (0, 2))).unwrap();
            let occupied =
                MapRequest { placement: Placement::FixedNoReplace, ..of_file(&file, Shared, BASE, (0, 4)) };
            assert_eq!(mm.mmap(&occupied), Err(MmError::Exists));
            assert_eq!((file.huge_pages(), free_and_promised(manager)), ((0, 2), (6, 2)));
        });
    });
}

#[test]
fn faults_that_fail_lose_nothing() {
    with_huge(9, |machine, manager| {
        let file = manager.huge_file(Size2M, 0).unwrap();
        let settled = |manager: &Manager<'_>, used: u64, reserved: u64| {
            assert_eq!(free_and_promised(manager), (9 - used, reserved));
        };
        run(manager, |mm| {
            mm.mmap(&of_file(&file, Shared, BASE, (0, 1))).unwrap();
            mm.mmap(&MapRequest { noreserve: true, ..of_file(&file, Shared, BASE + HUGE, (1, 1)) }).unwrap();
            mm.mmap(&of_file(&file, Private, BASE + (1 << 30), (0, 2))).unwrap();
            let mut reserved = 3;
            settled(manager, 0, reserved);
            for (used, (at, redeems)) in (1..).zip([(BASE, 1), (BASE + HUGE, 0), (BASE + (1 << 30), 1)]) {
                let after = (9 - used, reserved - redeems);
                each_failure(machine, || {
                    let done = store(machine, mm, at, 1).is_ok();
                    // The file may already have its page when a table cannot be allocated.
                    let filled = at < BASE + (1 << 30) && free_and_promised(manager) == after;
                    if !done && !filled {
                        settled(manager, used - 1, reserved);
                    }
                    done
                });
                reserved -= redeems;
                settled(manager, used, reserved);
            }
            let child = fork(mm);
            each_failure(machine, || {
                settled(manager, 3, 1);
                store(machine, mm, BASE + (1 << 30), 2).is_ok()
            });
            settled(manager, 4, 1);
            drop(child);
        });
    });
}

#[test]
fn reservations_are_a_files_before_it_is_mapped() {
    with_huge(6, |machine, manager| {
        let file = manager.huge_file(Size2M, 4 * HUGE).unwrap();
        file.reserve(4 * HUGE).unwrap();
        file.reserve(4 * HUGE).unwrap();
        assert_eq!(free_and_promised(manager), (6, 4));
        let other = manager.huge_file(Size2M, 3 * HUGE).unwrap();
        assert_eq!(other.reserve(3 * HUGE), Err(MmError::NoMemory));
        assert!(file.is_unmapped());
        run(manager, |mm| {
            mm.mmap(&of_file(&file, Shared, BASE, (0, 4))).unwrap();
            assert_eq!((file.mapping_count(), file.is_unmapped()), (1, false));
            store(machine, mm, BASE, 1).unwrap();
            mm.munmap(VirtAddr(BASE + HUGE), HUGE).unwrap();
            assert_eq!(file.mapping_count(), 2, "one mapping became two");
            let child = mm.fork().unwrap();
            assert_eq!(file.mapping_count(), 4);
            child.exit();
            assert_eq!(file.mapping_count(), 2);
        });
        assert!(file.is_unmapped());
        drop((file, other));
        assert_eq!(free_and_promised(manager), (6, 0));
    });
}

#[test]
fn a_private_mapping_and_one_for_reads_store_nothing_to_the_file() {
    with_huge(4, |_, manager| {
        let file = manager.huge_file(Size2M, HUGE).unwrap();
        run(manager, |mm| {
            mm.mmap(&of_file(&file, Private, BASE, (0, 1))).unwrap();
            mm.mmap(&MapRequest {
                forbid: Protection::WRITE,
                prot: Protection::READ,
                ..of_file(&file, Shared, BASE + 16 * HUGE, (0, 1))
            })
            .unwrap();
            assert!(!file.may_be_stored_to());
            mm.mmap(&MapRequest {
                prot: Protection::READ,
                ..of_file(&file, Shared, BASE + 17 * HUGE, (0, 1))
            })
            .unwrap();
            assert!(file.may_be_stored_to(), "mprotect may allow stores");
        });
        assert!(!file.may_be_stored_to());
    });
}

/// A fault that finds no page leaves the file system as it was: the pool keeps no page for it that it kept not before
/// (invariant 10).
#[test]
fn a_refused_page_is_not_kept_for_its_file_system() {
    with_huge(2, |machine, manager| {
        let fs = manager.huge_fs(Size2M, HugeFsLimits { max: 4, min: 2 }).unwrap();
        let file = fs.create(4 * HUGE).unwrap();
        run(manager, |mm| {
            mm.mmap(&of_file(&file, Private, BASE, (0, 2))).unwrap();
            (0..2).for_each(|page| store(machine, mm, BASE + page * HUGE, 1).unwrap());
            let child = fork(mm);
            mm.munmap(VirtAddr(BASE), 2 * HUGE).unwrap();
            assert_eq!(
                (free_and_promised(manager), used_and_kept(&fs)),
                ((0, 0), (0, 0)),
                "a child has them"
            );
            let loose = MapRequest { noreserve: true, ..of_file(&file, Private, BASE + 16 * HUGE, (2, 1)) };
            mm.mmap(&loose).unwrap();
            assert_eq!(store(machine, mm, BASE + 16 * HUGE, 1), Err(FaultError::NoHugePage));
            assert_eq!((free_and_promised(manager), used_and_kept(&fs)), ((0, 0), (0, 0)));
            child.exit();
            store(machine, mm, BASE + 16 * HUGE, 1).unwrap();
            manager.huge_pools().validate(manager.pages()).unwrap();
        });
    });
}
