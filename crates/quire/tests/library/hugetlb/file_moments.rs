//! Pages of files of 1 GiB that are cleared piece by piece, or that move, while another CPU does something at
//! any moment; and what is left where pieces were unmapped.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hosted::{FailurePlan, Hosted, HostedConfig, InterruptPlan};
use quire::addr::VirtAddr;
use quire::cpu::CpuId;
use quire::error::FaultError;
use quire::hugetlb::HugeSize::{self, Size1G, Size2M};
use quire::manager::Config;
use quire::page_alloc::{AllocatorConfig, MemoryRange, NodeSet, Zeroes};
use quire::vm::Sharing::Shared;
use quire::vm::{Access, Advice, AnswerMode, File, MapRequest, Remap, UserfaultChanges, UserfaultModes};

use crate::hugetlb::parts_moments::{at_moments, held_up};
use crate::hugetlb::pieces::{ALL_FREE, GIB, idle, leaf_bytes, with_machine};
use crate::hugetlb::world::{
    BASE, HUGE, Manager, R, RW, Space, all_are_back, clear_ahead_until, info, load, of_file, run, store,
    within,
};
use testkit::{held_up_to_look, ranges_of, stress_time};

const PAGE: u64 = 4096;
/// How long one CPU waits for another that visits or clears all of a page.
pub(super) const PATIENCE: Duration = Duration::from_millis(300);

/// Two CPUs and a pool, no page of which is known to be zero. Clearing takes no time, and clears nothing.
pub(super) fn with_pool(size: HugeSize, bytes: u64, pages: u64, test: impl FnOnce(&Hosted, &Manager<'_>)) {
    let machine = HostedConfig { clearing: false, ..HostedConfig::new(bytes) }.with_cpus(2).build().unwrap();
    machine.run_on(CpuId(0), || {
        let zeroes = Zeroes { verify: false, ..Zeroes::default() };
        let allocator = AllocatorConfig { zeroes, ..AllocatorConfig::default() };
        let config = Config { allocator, ..Config::default() };
        let ranges: Vec<_> =
            ranges_of(&machine).into_iter().map(|range| MemoryRange { zeroed: false, ..range }).collect();
        let manager = hosted::raw::memory_manager(&machine, &ranges, &config).unwrap();
        let pools = manager.huge_pools();
        assert_eq!(pools.resize(manager.pages(), size, NodeSet::ALL, pages).after, pages);
        test(&machine, &manager);
        all_are_back(&manager, size);
    });
    machine.assert_clean();
}

/// Maps one page of 1 GiB of a file.
fn mapped<'m>(manager: &'m Manager<'_>, file: &File<'m, Hosted>) -> Space<'m> {
    let mm = manager.new_mm().expect("memory");
    mm.mmap(&of_file(file, Shared, BASE, (0, GIB / HUGE))).expect("a page is reserved");
    mm
}

/// A hole or a new end leaves an empty table where a piece was mapped. A handler's mapping gets one leaf in
/// its place, whether a fault, a populating verb or the handler brings it.
#[test]
fn an_empty_table_makes_room_for_the_leaf_of_a_handlers_mapping() {
    type Drops = fn(&File<'_, Hosted>);
    type Brings = (UserfaultModes, fn(&Space<'_>));
    let drops: [Drops; 2] = [
        |file| file.punch_hole(0..GIB).unwrap(),
        |file| {
            file.truncate(0).unwrap();
            file.truncate(GIB).unwrap();
        },
    ];
    let touch: fn(&Space<'_>) = |mm| _ = mm.fault(VirtAddr(BASE), Access::Write).unwrap();
    let lock: fn(&Space<'_>) = |mm| mm.mlock(VirtAddr(BASE), GIB, false).unwrap();
    let brings: [Brings; 5] = [
        (UserfaultModes::MINOR, touch),
        (UserfaultModes::MINOR, lock),
        (UserfaultModes::WRITE_PROTECT, touch),
        (UserfaultModes::WRITE_PROTECT, lock),
        (UserfaultModes::MISSING, |mm| {
            let answer = mm.userfault_zeropage(VirtAddr(BASE), GIB, AnswerMode::default());
            assert_eq!(answer.bytes, GIB);
        }),
    ];
    for drop_page in drops {
        for watched_first in [false, true] {
            for (modes, bring) in brings {
                with_machine(1, 1, |machine, manager| {
                    let file = manager.huge_file(Size1G, GIB).unwrap();
                    run(manager, |mm| {
                        mm.mmap(&of_file(&file, Shared, BASE, (0, GIB / HUGE))).unwrap();
                        store(machine, mm, BASE + 77 * HUGE, 5).unwrap();
                        let handler = manager.userfault(UserfaultChanges::NONE).unwrap();
                        let watch = || mm.userfault_register(&handler, VirtAddr(BASE), GIB, modes).unwrap();
                        if watched_first {
                            watch();
                        }
                        drop_page(&file);
                        if !watched_first {
                            watch();
                        }
                        bring(mm);
                        assert_eq!(leaf_bytes(machine, mm, BASE), Some(GIB));
                        mm.userfault_unregister(VirtAddr(BASE), GIB).unwrap();
                        assert_eq!(load(machine, mm, BASE + 77 * HUGE), Ok(0));
                    });
                    drop(file);
                });
            }
        }
    }
}

/// Memory goes bad while a page is completed for a mapping that has an empty table there: no leaf maps it.
#[test]
fn memory_that_goes_bad_is_not_mapped_by_the_task_that_completes_its_page() {
    let meet = |round, fails: bool| {
        let mut met = (0, false);
        with_pool(Size1G, 2 * GIB, 1, |machine, manager| {
            let file = manager.huge_file(Size1G, GIB).expect("memory");
            let [first, second] = [(); 2].map(|()| mapped(manager, &file));
            within(&first, || first.fault(VirtAddr(BASE), Access::Write).unwrap());
            file.punch_hole(0..GIB).expect("whole pages");
            within(&second, || second.fault(VirtAddr(BASE), Access::Write).unwrap());
            let bad = second.translate(VirtAddr(BASE), Access::Read).expect("mapped").frame.add(77 * 512);
            let complete = || {
                first.switch_in();
                _ = first.mlock(VirtAddr(BASE), GIB, false);
                first.switch_out();
            };
            let fail = || _ = fails.then(|| manager.memory_failure(bad).expect("a page of a pool"));
            let ended = |_| leaf_bytes(machine, &second, BASE) == Some(GIB);
            met = held_up(machine, round, (complete, fail), ended);
            for mm in [first, second] {
                if fails {
                    assert_eq!(machine.probe(mm.root(), VirtAddr(BASE + 77 * HUGE)), None, "{round}");
                    assert_eq!(mm.fault(VirtAddr(BASE), Access::Write), Err(FaultError::Poisoned));
                }
                mm.exit();
            }
            drop(file);
        });
        met
    };
    let (all, _) = meet(u64::MAX, false);
    let moments: Vec<_> = (0..all).collect();
    let ended = moments.partition_point(|&round| !meet(round, false).1);
    println!("it ended at {ended} of {all} calls");
    assert!(ended < moments.len(), "the page ends before its leaf is mapped");
    moments[ended..].iter().take(300).step_by(3).for_each(|&round| _ = meet(round, true));
}

/// The frames to which a page moves go bad, before or after they are mapped: no leaf maps a bad frame.
#[test]
fn a_page_that_moves_to_memory_that_goes_bad_is_not_mapped_there() {
    for splits in [false, true] {
        let mut to = None;
        let met = at_moments(150, |round| {
            let mut met = (0, false);
            with_pool(Size2M, 64 << 20, 2, |machine, manager| {
                let file = manager.huge_file(Size2M, HUGE).expect("memory");
                let mm = manager.new_mm().expect("memory");
                mm.mmap(&of_file(&file, Shared, BASE, (0, 1))).expect("a page is reserved");
                let at = VirtAddr(BASE);
                if splits {
                    mm.madvise(VirtAddr(BASE), HUGE, Advice::Split).unwrap();
                }
                within(&mm, || store(machine, &mm, at.0, 5).unwrap());
                let frame_of = || mm.translate(at, Access::Read).map(|found| found.frame);
                let old = frame_of().expect("mapped");
                let failed = AtomicBool::new(false);
                let fail = || {
                    let done = to.is_some_and(|to| manager.memory_failure(to).is_ok());
                    failed.store(done, Ordering::Relaxed);
                };
                let (calls, _) =
                    held_up(machine, round, (|| _ = manager.migrate(old), fail), |through| through);
                let (new, failed) = (frame_of(), failed.into_inner());
                assert!(!failed || new.is_none() || new != to, "{round}: memory that went bad is mapped");
                to = to.or(new);
                let lost = mm.fault(at, Access::Read) == Err(FaultError::Poisoned);
                assert_eq!(lost, new.is_none(), "{round}");
                if lost && splits {
                    assert!(machine.probe(mm.root(), at.add(PAGE)).is_some(), "{round}: the rest stays");
                }
                met = (calls, failed && lost);
                mm.exit();
                drop(file);
            });
            met
        });
        assert!(met > 1, "memory never went bad meanwhile");
    }
}

/// Verbs that leave the leaves of pieces as they are clear nothing.
#[test]
fn verbs_that_need_no_whole_page_clear_nothing() {
    type Verb = (&'static str, fn(&Space<'_>));
    let verbs: [Verb; 3] = [
        ("fork", |mm| mm.fork().unwrap().exit()),
        ("mprotect", |mm| {
            mm.mprotect(VirtAddr(BASE), GIB, R).unwrap();
            mm.mprotect(VirtAddr(BASE), GIB, RW).unwrap();
        }),
        ("mremap", |mm| {
            let to = VirtAddr(BASE + 8 * GIB);
            mm.mremap(VirtAddr(BASE), GIB, GIB, Remap::Fixed(to)).unwrap();
            mm.mremap(to, GIB, GIB, Remap::Fixed(VirtAddr(BASE))).unwrap();
        }),
    ];
    for (name, verb) in verbs {
        with_machine(1, 1, |machine, manager| {
            let file = manager.huge_file(Size1G, GIB).unwrap();
            run(manager, |mm| {
                mm.mmap(&of_file(&file, Shared, BASE, (0, GIB / HUGE))).unwrap();
                let before = machine.counters().bytes_cleared;
                store(machine, mm, BASE + 77 * HUGE, 5).unwrap();
                verb(mm);
                let cleared = (machine.counters().bytes_cleared - before) / HUGE;
                assert_eq!((cleared, mm.rss().huge), (1, 512), "{name}");
                store(machine, mm, BASE + 78 * HUGE, 6).unwrap();
                assert_eq!(idle(manager), 511, "{name}");
                for (at, word) in [(77, 5), (78, 6), (0, 0)] {
                    assert_eq!(load(machine, mm, BASE + at * HUGE), Ok(word), "{name}");
                }
                assert_eq!(leaf_bytes(machine, mm, BASE), Some(GIB), "{name}");
                store(machine, mm, BASE, 6).unwrap();
            });
            drop(file);
        });
    }
}

/// A page is not ended before its file has it. Memory for the file's table runs out then: the page goes back
/// to the pool, and nothing is left of it.
#[test]
fn a_page_is_not_ended_before_its_file_has_it() {
    let met = at_moments(150, |round| {
        let mut met = (0, false);
        with_pool(Size1G, 2 * GIB, 1, |machine, manager| {
            // The file's table needs more than one node for its last page.
            let file = manager.huge_file(Size1G, 100 * GIB).expect("memory");
            let mm = manager.new_mm().expect("memory");
            let request = of_file(&file, Shared, BASE, (99 * GIB / HUGE, GIB / HUGE));
            mm.mmap(&MapRequest { noreserve: true, ..request }).expect("nothing is reserved");
            let touch = || {
                mm.switch_in();
                _ = mm.fault(VirtAddr(BASE), Access::Write);
                mm.switch_out();
            };
            let cleared = AtomicBool::new(false);
            let clear = || {
                // 512 pieces, and the end.
                let pieces = idle(manager);
                assert!(pieces <= 512 || file.huge_pages().0 == 1, "{round}: no file has it");
                cleared.store(pieces == 512, Ordering::Relaxed);
                machine.set_failures(FailurePlan::Nth(0));
            };
            let plan = InterruptPlan::Nth(round);
            let calls = held_up_to_look(machine, plan, PATIENCE, touch, clear, |_| ()).calls;
            machine.set_failures(FailurePlan::Off);
            met = (calls, cleared.into_inner() && file.huge_pages().0 == 0);
            if met.1 {
                // It is zero and in pieces no more: another file has it as a whole at once.
                let next = manager.huge_file(Size1G, GIB).expect("memory");
                let other = mapped(manager, &next);
                within(&other, || other.fault(VirtAddr(BASE), Access::Write).expect("a page is reserved"));
                assert_eq!(leaf_bytes(machine, &other, BASE), Some(GIB), "{round}");
                other.exit();
                drop(next);
            }
            mm.exit();
            drop(file);
            assert_eq!(info(manager, Size1G), ALL_FREE(1), "{round}");
        });
        met
    });
    assert!(met > 0, "memory never ran out before the file had the page");
}

/// While a file is closed, idle CPUs clear the pages of others.
#[test]
fn a_page_that_cannot_be_ended_keeps_no_cpu_from_others() {
    let mut ended = 0;
    at_moments(60, |round| {
        let mut met = (0, false);
        with_pool(Size1G, 3 * GIB, 2, |machine, manager| {
            let files = [(); 2].map(|()| manager.huge_file(Size1G, GIB).expect("memory"));
            let spaces = [&files[0], &files[1]].map(|file| mapped(manager, file));
            let touch = |mm: &Space<'_>| within(mm, || mm.fault(VirtAddr(BASE), Access::Write).unwrap());
            touch(&spaces[0]);
            assert!((0..511).all(|_| manager.clear_ahead()));
            touch(&spaces[1]);
            let drop_page = || files[0].punch_hole(0..GIB).expect("whole pages");
            let clear = || assert!(manager.clear_ahead(), "{round}: there is work");
            met = held_up(machine, round, (drop_page, clear), |through| through);
            ended += u64::from(leaf_bytes(machine, &spaces[1], BASE + HUGE).is_some());
            spaces.into_iter().for_each(|mm| mm.exit());
        });
        met
    });
    assert_eq!(ended, 0, "the second page is in pieces");
}

/// Pieces of each page into which words are stored first, so that each page of the pool has old contents.
const USED: u64 = 32;

/// Leaves words in the pages of a pool.
fn use_all(machine: &Hosted, manager: &Manager<'_>, pages: u64) {
    let file = manager.huge_file(Size1G, pages * GIB).unwrap();
    run(manager, |mm| {
        mm.mmap(&of_file(&file, Shared, BASE, (0, pages * 512))).unwrap();
        for piece in (0..pages).flat_map(|page| page * 512..page * 512 + USED) {
            [128, 136].into_iter().for_each(|at| store(machine, mm, BASE + piece * HUGE + at, !0).unwrap());
        }
    });
    drop(file);
}

/// CPUs store in two address spaces, clear ahead, fork, move, and punch holes at once. No load sees what a
/// page had before it was cleared (invariant F3).
#[test]
fn pieces_are_cleared_beside_verbs_on_other_cpus() {
    with_machine(4, 4, |machine, manager| {
        use_all(machine, manager, 4);
        let file = &manager.huge_file(Size1G, 2 * GIB).unwrap();
        let spaces = &[(); 2].map(|()| manager.new_mm().unwrap());
        for mm in spaces {
            mm.mmap(&MapRequest { noreserve: true, ..of_file(file, Shared, BASE, (0, 2 * 512)) }).unwrap();
        }
        let end = Instant::now() + stress_time();
        machine.spawn_cpus(4, |cpu| {
            let mut rng = fastrand::Rng::with_seed(cpu.0.into());
            if cpu.0 == 3 {
                while Instant::now() < end {
                    let mm = &spaces[rng.usize(..2)];
                    match rng.u32(..6) {
                        0 => mm.fork().unwrap().exit(),
                        1 => mm.mprotect(VirtAddr(BASE), 2 * GIB, RW).unwrap(),
                        2 => mm.madvise(VirtAddr(BASE), 2 * GIB, Advice::DontNeed).unwrap(),
                        3 => file.punch_hole(GIB..2 * GIB).unwrap(),
                        4 => {
                            let found = mm.translate(VirtAddr(BASE), Access::Read);
                            let _moved = found.map(|found| manager.migrate(found.frame));
                        }
                        _ => std::thread::sleep(Duration::from_millis(5)),
                    }
                }
                return;
            }
            if cpu.0 == 2 {
                return clear_ahead_until(manager, end);
            }
            // The first page is never dropped: what a CPU stored there stays.
            let mm = &spaces[cpu.0 as usize];
            mm.switch_in();
            let own = |piece: u64| BASE + piece * HUGE + u64::from(cpu.0) * 8;
            let mut words = BTreeMap::new();
            while Instant::now() < end {
                let (piece, word) = (rng.u64(..1024), rng.u64(1..));
                let other = load(machine, mm, own(piece % 512 % USED) + 128 + piece / 512 * GIB);
                assert!(matches!(other, Ok(0) | Err(_)), "a piece was not cleared");
                if store(machine, mm, own(piece), word).is_ok() && piece < 512 {
                    words.insert(piece, word);
                }
            }
            words.iter().for_each(|(&piece, &word)| assert_eq!(load(machine, mm, own(piece)), Ok(word)));
            mm.switch_out();
        });
        for mm in spaces {
            mm.validate().unwrap();
            mm.munmap(VirtAddr(BASE), 2 * GIB).unwrap();
        }
        file.truncate(0).unwrap();
        assert_eq!(info(manager, Size1G), ALL_FREE(4));
    });
}
