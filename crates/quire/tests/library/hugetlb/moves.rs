//! Pages of pools that move to other frames while they are in use, and frames that are taken out of use before they
//! go bad.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hosted::{Hosted, HostedConfig, InterruptPlan};
use quire::addr::{Frame, FrameRange, Order, VirtAddr};
use quire::error::{MemoryFailureError, MigrateError};
use quire::hugetlb::{Charge, HugeFsLimits, HugeGroup, HugeSize::Size1G, HugeSize::Size2M, PoolInfo};
use quire::limits::MAX_HUGE_FS;
use quire::page_alloc::{Gfp, NodePolicy, NodeSet};
use quire::vm::Sharing::{Private, Shared};
use quire::vm::{Access, Advice, FolioPolicy, MapRequest, Remap, UserfaultChanges, UserfaultModes};

use crate::hugetlb::support::{GIB, MIB, two_nodes};
use crate::hugetlb::world::{
    BASE, HUGE, Space, check, info, load, of_file, private, run, store, with_config, with_huge, with_pool,
    within,
};
use testkit::{Stress, held_up, seed};

fn frame_at(mm: &Space<'_>, addr: u64) -> Frame {
    mm.translate(VirtAddr(addr), Access::Read).expect("mapped").frame
}

/// All of a page that matters: a word of each 4 KiB.
fn fill(machine: &Hosted, mm: &Space<'_>, addr: u64, salt: u64) {
    (0..512).for_each(|at| store(machine, mm, addr + at * 4096, salt + at).unwrap());
}

fn is_filled(machine: &Hosted, mm: &Space<'_>, addr: u64, salt: u64) -> bool {
    (0..512).all(|at| load(machine, mm, addr + at * 4096) == Ok(salt + at))
}

#[test]
fn a_private_page_moves_in_every_address_space_that_maps_it() {
    with_huge(8, |machine, manager| {
        run(manager, |mm| {
            mm.mmap(&private(BASE, 3)).unwrap();
            fill(machine, mm, BASE, 100);
            fill(machine, mm, BASE + HUGE, 7000);
            let child = mm.fork().unwrap();
            let grandchild = child.fork().unwrap();
            let old = frame_at(mm, BASE);
            let before = info(manager, Size2M);
            assert_eq!(manager.migrate(old.add(77)), Ok(512));
            let new = frame_at(mm, BASE);
            assert_ne!(new, old);
            assert_eq!([frame_at(&child, BASE), frame_at(&grandchild, BASE)], [new, new], "one copy for all");
            assert_eq!(info(manager, Size2M), before, "a new page came for the old one");
            assert!(!manager.pages().frames().is_huge(old, Order::BLOCK));
            assert!(is_filled(machine, mm, BASE, 100));
            // Stores make copies as after any fork.
            store(machine, mm, BASE, 5).unwrap();
            assert_ne!(frame_at(mm, BASE), new);
            mm.switch_out();
            within(&child, || assert!(is_filled(machine, &child, BASE, 100)));
            child.exit();
            within(&grandchild, || {
                assert!(is_filled(machine, &grandchild, BASE, 100));
                store(machine, &grandchild, BASE, 6).unwrap();
                assert_eq!(frame_at(&grandchild, BASE), new, "the last one keeps it");
            });
            grandchild.exit();
            mm.switch_in();
            assert_eq!(manager.migrate(frame_at(mm, BASE)), Ok(512));
            assert_eq!(load(machine, mm, BASE), Ok(5));
            store(machine, mm, BASE, 8).unwrap();
            assert!(is_filled(machine, mm, BASE + HUGE, 7000));
            check(manager);
        });
    });
}

/// A page that was moved by `mremap` is found where it is, and keeps its reservation.
#[test]
fn a_page_of_a_mapping_that_moved_moves_and_is_reserved_again() {
    with_huge(4, |machine, manager| {
        run(manager, |mm| {
            mm.mmap(&private(BASE, 2)).unwrap();
            fill(machine, mm, BASE, 1);
            let to = BASE + 32 * HUGE;
            mm.mremap(VirtAddr(BASE), 2 * HUGE, 2 * HUGE, Remap::Fixed(VirtAddr(to))).unwrap();
            let old = frame_at(mm, to);
            assert_eq!(manager.migrate(old), Ok(512));
            assert_ne!(frame_at(mm, to), old);
            assert!(is_filled(machine, mm, to, 1));
            mm.madvise(VirtAddr(to), HUGE, Advice::DontNeed).unwrap();
            assert_eq!(info(manager, Size2M), PoolInfo { total: 4, free: 4, reserved: 2, surplus: 0 });
        });
    });
}

#[test]
fn a_page_of_a_file_moves_under_all_its_mappings() {
    with_huge(8, |machine, manager| {
        let file = manager.huge_file(Size2M, 4 * HUGE).unwrap();
        let group = manager.huge_pools().make_group(manager.pages(), HugeGroup::NONE).unwrap();
        let charged = || {
            let of = |kind| manager.huge_pools().group_counters(group, Size2M, kind).current;
            [of(Charge::Usage), of(Charge::Reservation)]
        };
        run(manager, |mm| {
            mm.set_huge_group(group);
            mm.mmap(&of_file(&file, Shared, BASE, (0, 3))).unwrap();
            mm.mmap(&of_file(&file, Private, BASE + 16 * HUGE, (0, 3))).unwrap();
            (0..2).for_each(|page| fill(machine, mm, BASE + page * HUGE, 9000 * page));
            store(machine, mm, BASE + 17 * HUGE, 1).unwrap();
            assert_eq!(load(machine, mm, BASE + 16 * HUGE), Ok(0));
            let (before, own) = (charged(), frame_at(mm, BASE + 17 * HUGE));
            for page in 0..2 {
                let old = frame_at(mm, BASE + page * HUGE);
                assert_eq!(manager.migrate(old), Ok(512));
                assert!(is_filled(machine, mm, BASE + page * HUGE, 9000 * page));
                assert_ne!(frame_at(mm, BASE + page * HUGE), old);
            }
            assert_eq!(load(machine, mm, BASE + 16 * HUGE), Ok(0));
            assert_eq!(
                frame_at(mm, BASE + 16 * HUGE),
                frame_at(mm, BASE),
                "the private mapping shows the file's"
            );
            assert_eq!(frame_at(mm, BASE + 17 * HUGE), own, "but its copy stays");
            assert_eq!(charged(), before);
            assert_eq!(file.huge_pages(), (2, 1));
        });
        assert_eq!(charged(), [2, 3]);
        drop(file);
        assert_eq!(charged(), [0, 0]);
    });
}

/// A handler that is registered after an attempt to move a page is told of none of its parts.
#[test]
fn a_handler_finds_the_parts_that_were_mapped_before_a_move() {
    with_huge(3, |machine, manager| {
        let file = manager.huge_file(Size2M, HUGE).unwrap();
        run(manager, |mm| {
            mm.mmap(&of_file(&file, Shared, BASE, (0, 1))).unwrap();
            mm.madvise(VirtAddr(BASE), HUGE, Advice::Split).unwrap();
            fill(machine, mm, BASE, 40);
            let _ = manager.migrate(frame_at(mm, BASE));
            let handler = manager.userfault(UserfaultChanges::NONE).unwrap();
            mm.userfault_register(&handler, VirtAddr(BASE), HUGE, UserfaultModes::MISSING).unwrap();
            handler.close();
            assert!(is_filled(machine, mm, BASE, 40));
        });
        drop(file);
    });
}

#[test]
fn a_page_moves_to_the_node_that_is_asked_for() {
    with_config(two_nodes(64 * MIB), Size2M, 6, |machine, manager| {
        for (node, wanted) in [(0, 0), (1, 3), (0, 3)] {
            let _ = manager.huge_pools().resize_node(manager.pages(), Size2M, node, wanted);
        }
        let node_of = |frame: Frame| frame.addr().0 / (64 * MIB);
        let totals =
            || [0, 1].map(|node| manager.huge_pools().node_info(manager.pages(), Size2M, node).total);
        let far = NodePolicy::Bind(NodeSet::one(1));
        run(manager, |mm| {
            mm.mmap(&private(BASE, 3)).unwrap();
            fill(machine, mm, BASE, 3);
            assert_eq!(node_of(frame_at(mm, BASE)), 0);
            assert_eq!(manager.migrate_to(frame_at(mm, BASE), far), Ok(512));
            assert_eq!((node_of(frame_at(mm, BASE)), totals()), (1, [3, 3]), "a free page of the pool");
            assert!(is_filled(machine, mm, BASE, 3));
            // The free pages are reserved, so a new one comes, and the old one leaves.
            mm.mmap(&private(BASE + 8 * HUGE, 3)).unwrap();
            assert_eq!(info(manager, Size2M).free, info(manager, Size2M).reserved);
            let near = NodePolicy::Bind(NodeSet::one(0));
            assert_eq!(manager.migrate_to(frame_at(mm, BASE), near), Ok(512));
            assert_eq!((node_of(frame_at(mm, BASE)), totals()), (0, [4, 2]));
            assert!(is_filled(machine, mm, BASE, 3));
        });
        check(manager);
    });
}

/// The charge of a page goes with it.
#[test]
fn a_page_that_moves_is_charged_once() {
    with_huge(6, |machine, manager| {
        let (pools, pages) = (manager.huge_pools(), manager.pages());
        let group = pools.make_group(pages, HugeGroup::NONE).unwrap();
        let fs = manager.huge_fs(Size2M, HugeFsLimits { max: 2, min: 0 }).unwrap();
        let file = fs.create(2 * HUGE).unwrap();
        pools.set_group_max(group, Size2M, Charge::Usage, 2);
        run(manager, |mm| {
            mm.set_huge_group(group);
            let request = of_file(&file, Private, BASE, (0, 2));
            mm.mmap(&MapRequest { noreserve: true, ..request }).unwrap();
            (0..2).for_each(|page| store(machine, mm, BASE + page * HUGE, page).unwrap());
            for _ in 0..3 {
                manager.migrate(frame_at(mm, BASE)).unwrap();
                let used = pools.group_counters(group, Size2M, Charge::Usage).current;
                assert_eq!((used, pools.group_nodes(pages, group, Size2M)[0], fs.info().used), (2, 2, 2));
            }
        });
        assert_eq!(pools.group_counters(group, Size2M, Charge::Usage).current, 0);
        assert_eq!(fs.info().used, 0);
        drop((file, fs));
    });
}

#[test]
fn a_frame_of_a_page_in_use_is_put_aside_and_programs_go_on() {
    with_pool(Size2M, 128 * MIB, 4, |machine, manager| {
        let file = manager.huge_file(Size2M, HUGE).unwrap();
        run(manager, |mm| {
            mm.mmap(&private(BASE, 1)).unwrap();
            mm.mmap(&of_file(&file, Shared, BASE + 8 * HUGE, (0, 1))).unwrap();
            for (at, left) in [(BASE, 3), (BASE + 8 * HUGE, 2)] {
                fill(machine, mm, at, at);
                let weak = frame_at(mm, at).add(300);
                assert_eq!(manager.soft_offline(weak), Ok(()));
                assert!(is_filled(machine, mm, at, at), "nothing is lost");
                assert!(!FrameRange::folio(frame_at(mm, at), Order::BLOCK).contains(weak));
                let now = info(manager, Size2M);
                assert_eq!((now.total, now.surplus), (left, 0), "the page with the frame left its pool");
                assert_eq!(manager.soft_offline(weak), Err(MemoryFailureError::AlreadyPoisoned));
            }
            assert_eq!(manager.pages().frames().bad_frames(), 2);
            // All pages are in use: a new one comes, and the pool stays as large.
            let weak = frame_at(mm, BASE).add(1);
            assert_eq!(manager.soft_offline(weak), Ok(()));
            assert!(is_filled(machine, mm, BASE, BASE));
            assert_eq!((info(manager, Size2M).total, manager.meminfo().bad), (2, 3));
            check(manager);
        });
        drop(file);
    });
}

#[test]
fn a_frame_of_a_free_page_is_put_aside() {
    with_pool(Size2M, 128 * MIB, 3, |_, manager| {
        let mut free = Vec::new();
        manager.huge_pools().each_free(manager.pages(), Size2M, |frame| free.push(frame));
        assert_eq!(manager.soft_offline(free[1].add(9)), Ok(()));
        assert_eq!(info(manager, Size2M).total, 2);
        // Where all are reserved, another page comes first.
        manager.huge_pools().reserve(manager.pages(), Size2M, 2).unwrap();
        assert_eq!(manager.soft_offline(free[0].add(9)), Ok(()));
        assert_eq!(info(manager, Size2M), PoolInfo { total: 2, free: 2, reserved: 2, surplus: 0 });
        manager.huge_pools().unreserve(manager.pages(), Size2M, 2);
        assert_eq!(manager.pages().frames().bad_frames(), 2);
        check(manager);
    });
}

/// No page can replace it: all stays as it was, and nothing is marked.
#[test]
fn without_memory_a_page_stays_where_it_is() {
    with_pool(Size2M, 64 * MIB, 24, |machine, manager| {
        run(manager, |mm| {
            mm.mmap(&private(BASE, 24)).unwrap();
            (0..24).for_each(|page| store(machine, mm, BASE + page * HUGE, page).unwrap());
            manager.set_folio_policy(FolioPolicy::FRAMES);
            let hoard: Vec<_> =
                std::iter::from_fn(|| manager.pages().alloc(Gfp::USER, Order::BLOCK).ok()).collect();
            let old = frame_at(mm, BASE);
            assert_eq!(manager.migrate(old), Err(MigrateError::OutOfMemory));
            assert_eq!(manager.soft_offline(old), Err(MemoryFailureError::OutOfMemory));
            assert_eq!((frame_at(mm, BASE), manager.meminfo().bad), (old, 0));
            store(machine, mm, BASE, 7).unwrap();
            assert_eq!(frame_at(mm, BASE), old);
            hoard.into_iter().for_each(|folio| manager.pages().free(folio).unwrap());
        });
    });
}

/// Memory of other kinds is moved and put aside as well.
#[test]
fn frames_of_other_memory_are_put_aside() {
    with_pool(Size2M, 128 * MIB, 0, |machine, manager| {
        let file = manager.shmem(HUGE).unwrap();
        for policy in [FolioPolicy::FRAMES, FolioPolicy::only(Order::BLOCK)] {
            manager.set_folio_policy(policy);
            run(manager, |mm| {
                mm.mmap(&MapRequest { huge: None, ..private(BASE, 1) }).unwrap();
                mm.mmap(&of_file(&file, Shared, BASE + 8 * HUGE, (0, 1))).unwrap();
                for at in [BASE, BASE + 8 * HUGE] {
                    fill(machine, mm, at, at);
                    let leaf = mm.translate(VirtAddr(at + 5 * 4096), Access::Read).unwrap();
                    let weak = leaf.frame.add((at + 5 * 4096 - leaf.addr.0) >> 12);
                    let bad = manager.meminfo().bad;
                    assert_eq!(manager.soft_offline(weak), Ok(()));
                    assert!(is_filled(machine, mm, at, at), "nothing is lost");
                    let leaf = mm.translate(VirtAddr(at + 5 * 4096), Access::Read).unwrap();
                    assert_ne!(leaf.frame.add((at + 5 * 4096 - leaf.addr.0) >> 12), weak);
                    assert_eq!(manager.meminfo().bad, bad + 1);
                    assert_eq!(manager.soft_offline(weak), Err(MemoryFailureError::AlreadyPoisoned));
                }
            });
        }
        assert_eq!(manager.soft_offline(Frame(1 << 30)), Err(MemoryFailureError::NotMemory));
        drop(file);
    });
}

#[test]
fn pages_of_a_gibibyte_move_and_lose_one_frame() {
    with_pool(Size1G, 5 * GIB, 2, |machine, manager| {
        run(manager, |mm| {
            mm.mmap(&MapRequest { len: GIB, huge: Some(Size1G), ..private(BASE, 1) }).unwrap();
            (0..8).for_each(|at| store(machine, mm, BASE + at * 128 * MIB, at).unwrap());
            let old = frame_at(mm, BASE);
            assert_eq!(manager.migrate(old.add(512 * 77 + 5)), Ok(512 * 512));
            assert_ne!(frame_at(mm, BASE), old);
            let weak = frame_at(mm, BASE).add(512 * 300 + 1);
            assert_eq!(manager.soft_offline(weak), Ok(()));
            assert!((0..8).all(|at| load(machine, mm, BASE + at * 128 * MIB) == Ok(at)));
            assert_eq!((info(manager, Size1G).total, manager.meminfo().bad), (1, 1));
        });
    });
}

/// Pages of a pool in a range that is emptied, in use and free, are replaced by others elsewhere.
#[test]
fn pages_in_the_way_of_a_range_are_replaced() {
    with_config(HostedConfig::new(64 * MIB), Size2M, 12, |machine, manager| {
        let file = manager.huge_file(Size2M, 4 * HUGE).unwrap();
        run(manager, |mm| {
            mm.mmap(&private(BASE, 4)).unwrap();
            mm.mmap(&of_file(&file, Shared, BASE + 8 * HUGE, (0, 4))).unwrap();
            let places = (0..4).chain(8..12).map(|page| BASE + page * HUGE);
            places.clone().for_each(|at| fill(machine, mm, at, at));
            // The kernel has every other free block, so that no four in a row are free or could be.
            let frames = std::iter::from_fn(|| manager.pages().alloc(Gfp::KERNEL, Order::FRAME).ok());
            let (freed, kept): (Vec<_>, Vec<_>) =
                frames.partition(|folio| folio.frames().start.0 / 512 % 2 == 1);
            freed.into_iter().for_each(|folio| manager.pages().free(folio).unwrap());
            manager.pages().lists().drain_all();
            let before = info(manager, Size2M);
            let run = manager.alloc_contig(Gfp::USER, 4, 1).expect("pages of the pool make room");
            assert_eq!(info(manager, Size2M), before, "the pool is as large as before");
            assert!(places.clone().all(|at| is_filled(machine, mm, at, at)));
            assert!(places.clone().all(|at| !run.frames().contains(frame_at(mm, at))));
            check(manager);
            manager.pages().free_contig(run).unwrap();
            kept.into_iter().for_each(|folio| manager.pages().free(folio).unwrap());
        });
        drop(file);
    });
}

/// Pages move while other CPUs store to them, fork and end, and no store is lost.
#[test]
fn pages_move_beside_stores_and_forks() {
    let first = seed(fastrand::u64(..));
    println!("QUIRE_SEED={first}");
    let machine = HostedConfig::new(128 * MIB).with_cpus(3);
    with_config(machine, Size2M, 14, |machine, manager| {
        let file = manager.huge_file(Size2M, 2 * HUGE).unwrap();
        let mm = manager.new_mm().unwrap();
        mm.mmap(&private(BASE, 2)).unwrap();
        mm.mmap(&of_file(&file, Shared, BASE + 8 * HUGE, (0, 2))).unwrap();
        let places = [BASE, BASE + HUGE, BASE + 8 * HUGE, BASE + 9 * HUGE];
        let (moved, ended) = (AtomicU64::new(0), AtomicBool::new(false));
        let stress = Stress::begin();
        let enough = || moved.load(Ordering::Relaxed) > 10;
        machine.spawn_cpus(3, |cpu| {
            let mut random = fastrand::Rng::with_seed(first.wrapping_add(u64::from(cpu.0)));
            mm.switch_in();
            match cpu.0 {
                // The only writer of its words counts up: a lost store shows at the next one.
                0 | 1 => {
                    let mut counts = [0; 4];
                    while stress.goes_on(enough) {
                        let place = random.usize(0..4);
                        let at = places[place] + 4096 * u64::from(cpu.0) + 8;
                        assert_eq!(load(machine, &mm, at), Ok(counts[place]), "a store was lost");
                        counts[place] += 1;
                        store(machine, &mm, at, counts[place]).unwrap();
                        if cpu.0 == 1 && random.u32(0..40) == 0 {
                            let child = mm.fork().unwrap();
                            mm.switch_out();
                            child.switch_in();
                            {
                                let own = places[place] + 4096 + 8;
                                assert_eq!(load(machine, &child, own), Ok(counts[place]));
                                if place < 2 && store(machine, &child, own, 0).is_ok() {
                                    assert_eq!(load(machine, &child, own), Ok(0));
                                }
                            }
                            // No check of the child: its pages may be moving.
                            child.switch_out();
                            child.exit();
                            mm.switch_in();
                        }
                    }
                    ended.store(true, Ordering::Relaxed);
                }
                _ => {
                    while !ended.load(Ordering::Relaxed) {
                        let at = places[random.usize(0..4)];
                        let Some(leaf) = mm.translate(VirtAddr(at), Access::Read) else { continue };
                        match manager.migrate(leaf.frame) {
                            Ok(_) => _ = moved.fetch_add(1, Ordering::Relaxed),
                            Err(MigrateError::NotMovable | MigrateError::Busy) => {}
                            Err(error) => panic!("{error:?}"),
                        }
                    }
                }
            }
            mm.switch_out();
            manager.pages().lists().drain_local();
        });
        assert!(moved.load(Ordering::Relaxed) > 10, "{moved:?} moves");
        mm.validate().unwrap();
        mm.exit();
        drop(file);
        check(manager);
    });
}

/// Whatever allocation fails, a move leaves the page where it was or moves it.
#[test]
fn a_move_that_fails_at_any_allocation_loses_nothing() {
    with_huge(4, |machine, manager| {
        run(manager, |mm| {
            mm.mmap(&private(BASE, 2)).unwrap();
            fill(machine, mm, BASE, 3);
            let child = mm.fork().unwrap();
            for nth in 0.. {
                let old = frame_at(mm, BASE);
                machine.set_failures(hosted::FailurePlan::Nth(nth));
                let moved = manager.migrate(old);
                let failed = machine.allocations_failed() > 0;
                machine.set_failures(hosted::FailurePlan::Off);
                assert!(is_filled(machine, mm, BASE, 3));
                assert_eq!(frame_at(mm, BASE), frame_at(&child, BASE));
                // Where descriptors are restored, the old page may stay as a surplus one until there is memory.
                assert_eq!(manager.huge_pools().resize(manager.pages(), Size2M, NodeSet::ALL, 4).after, 4);
                assert_eq!(info(manager, Size2M), PoolInfo { total: 4, free: 3, reserved: 1, surplus: 0 });
                match moved {
                    Ok(_) => assert_ne!(frame_at(mm, BASE), old),
                    Err(MigrateError::OutOfMemory) => assert_eq!(frame_at(mm, BASE), old),
                    Err(error) => panic!("{error:?}"),
                }
                if !failed {
                    break;
                }
            }
            child.exit();
        });
    });
}

/// Files come and go while their pages are moved: each page goes back to the pool once.
#[test]
fn pages_of_files_that_go_are_moved_or_given_back() {
    let machine = HostedConfig::new(64 * MIB).with_cpus(2);
    with_config(machine, Size2M, 6, |machine, manager| {
        let fs = manager.huge_fs(Size2M, HugeFsLimits::default()).unwrap();
        let (there, ended, moved) = (AtomicU64::new(0), AtomicBool::new(false), AtomicU64::new(0));
        let stress = Stress::begin();
        machine.spawn_cpus(2, |cpu| {
            if cpu.0 == 0 {
                let mm = manager.new_mm().unwrap();
                mm.switch_in();
                for round in 0.. {
                    if !stress.goes_on(|| moved.load(Ordering::Relaxed) > 10) {
                        break;
                    }
                    let file = fs.create(2 * HUGE).unwrap();
                    mm.mmap(&of_file(&file, Shared, BASE, (0, 2))).unwrap();
                    store(machine, &mm, BASE + HUGE, round).unwrap();
                    // It may be on its way already, and not mapped.
                    let found = mm.translate(VirtAddr(BASE + HUGE), Access::Read);
                    there.store(found.map_or(0, |found| found.frame.0), Ordering::Relaxed);
                    // In some rounds until the page moves, in others until it may.
                    let before = moved.load(Ordering::Relaxed);
                    for _ in 0..if round % 4 == 0 { 100_000 } else { round % 50 } {
                        assert_eq!(load(machine, &mm, BASE + HUGE), Ok(round));
                        if moved.load(Ordering::Relaxed) != before {
                            break;
                        }
                    }
                    if round % 2 == 0 {
                        drop(file);
                        mm.munmap(VirtAddr(BASE), 2 * HUGE).unwrap();
                    } else {
                        mm.munmap(VirtAddr(BASE), 2 * HUGE).unwrap();
                        drop(file);
                    }
                }
                mm.switch_out();
                mm.exit();
                ended.store(true, Ordering::Relaxed);
            } else {
                while !ended.load(Ordering::Relaxed) {
                    let frame = Frame(there.load(Ordering::Relaxed));
                    let done = frame.0 > 0 && manager.migrate(frame).is_ok();
                    moved.fetch_add(u64::from(done), Ordering::Relaxed);
                }
            }
            manager.pages().lists().drain_local();
        });
        assert!(moved.load(Ordering::Relaxed) > 10, "{moved:?} moves");
        assert_eq!(fs.info().used, 0);
        drop(fs);
        // Each file was counted down once, so the file system's place is free again.
        let limits = HugeFsLimits::default();
        let all: Vec<_> = (0..MAX_HUGE_FS).map(|_| manager.huge_fs(Size2M, limits)).collect();
        assert!(all.iter().all(Result::is_ok));
        check(manager);
    });
}

/// Parent and child store to the page that they share at every moment of its move. Neither sees the other's word, and
/// no word is lost: while a page moves, no leaf of either copy gains the right to store.
#[test]
fn stores_at_every_moment_of_a_move_stay_with_their_process() {
    let machine = HostedConfig::new(64 * MIB).with_cpus(2);
    with_config(machine, Size2M, 6, |machine, manager| {
        let mut rounds = u64::MAX;
        let mut in_time = 0;
        for round in (0..=60).rev() {
            let mm = manager.new_mm().unwrap();
            within(&mm, || {
                mm.mmap(&private(BASE, 1)).unwrap();
                store(machine, &mm, BASE, 10).unwrap();
                store(machine, &mm, BASE + 4096, 20).unwrap();
            });
            let child = mm.fork().unwrap();
            let old = frame_at(&mm, BASE);
            let put = |mm: &Space<'_>, addr, word| {
                mm.switch_in();
                store(machine, mm, addr, word).unwrap();
                mm.switch_out();
            };
            let stores = || {
                put(&mm, BASE, 11);
                put(&child, BASE + 4096, 21);
            };
            let plan = InterruptPlan::Nth(round * rounds.min(60_000) / 60);
            let patience = Duration::from_millis(15);
            let held = held_up(machine, plan, patience, || _ = manager.migrate(old), stores);
            rounds = held.calls;
            in_time += u64::from(held.in_time);
            let words =
                |mm: &Space<'_>| within(mm, || [0, 4096].map(|at| load(machine, mm, BASE + at).unwrap()));
            assert_eq!((words(&mm), words(&child)), ([11, 20], [10, 21]), "at moment {round}");
            child.exit();
            mm.exit();
            check(manager);
        }
        assert!(in_time > 5, "the stores waited in all rounds but {in_time}");
    });
}

/// A store for which a page is made writable in its last address space, held up at any moment while the page
/// moves: the count of one may be of a page of which another address space has the new one already.
#[test]
fn a_page_that_moves_while_it_becomes_writable_stays_shared() {
    let machine = HostedConfig::new(64 * MIB).with_cpus(2);
    with_config(machine, Size2M, 6, |machine, manager| {
        let scene = |moment| {
            let mm = manager.new_mm().unwrap();
            within(&mm, || {
                mm.mmap(&private(BASE, 1)).unwrap();
                store(machine, &mm, BASE, 10).unwrap();
            });
            let child = mm.fork().unwrap();
            let old = frame_at(&mm, BASE);
            let put = || within(&child, || store(machine, &child, BASE, 11).unwrap());
            let (plan, patience) = (InterruptPlan::Nth(moment), Duration::from_millis(15));
            let held = held_up(machine, plan, patience, put, || _ = manager.migrate(old));
            let word = |mm: &Space<'_>| within(mm, || load(machine, mm, BASE).unwrap());
            assert_eq!((word(&mm), word(&child)), (10, 11), "at moment {moment}");
            child.exit();
            mm.exit();
            check(manager);
            (held.calls, held.in_time)
        };
        let (calls, _) = scene(u64::MAX);
        let in_time = (0..calls).filter(|&moment| scene(moment).1).count();
        assert!(in_time > 5, "the move waited in all rounds but {in_time} of {calls}");
    });
}
