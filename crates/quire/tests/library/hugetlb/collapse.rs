//! Huge pages that are mapped in parts become large leaves again (invariant 11): same frames, same rights, no
//! access refused.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use hosted::{Hosted, HostedConfig, InterruptPlan, Nested, during};
use quire::addr::VirtAddr;
use quire::cpu::CpuId;
use quire::error::FaultError;
use quire::hugetlb::{DescriptorPolicy, HugeSize};
use quire::manager::Config;
use quire::page_alloc::{AllocatorConfig, CountScheme, NodeSet};
use quire::stats::Stat;
use quire::vm::Sharing::{Private, Shared};
use quire::vm::{Access, Advice, Backing, CollapseSteps, Collapsed, File, MapRequest, Refusal};

use crate::hugetlb::world::{
    BASE, HUGE, Manager, R, RW, Space, load, of_file, private, run, store, with_config, with_huge, within,
};
use crate::watched::Watched;
use testkit::{PATIENCE, held_up, ranges_of};

const PAGE: u64 = 4096;
const GIB: u64 = 1 << 30;

/// A file of so many pages of one size that are mapped at [`BASE`], in parts.
fn map_split<'m>(manager: &'m Manager<'_>, mm: &Space<'m>, size: HugeSize, pages: u64) -> File<'m, Hosted> {
    let bytes = pages * size.bytes();
    let file = manager.huge_file(size, bytes).expect("memory for a file");
    mm.mmap(&of_file(&file, Shared, BASE, (0, bytes / HUGE))).unwrap();
    mm.madvise(VirtAddr(BASE), bytes, Advice::Split).unwrap();
    file
}

/// Makes 4 KiB leaves map the 2 MiB at `addr`: a part is dropped and faulted in again.
fn take_apart(machine: &Hosted, mm: &Space<'_>, addr: u64) {
    load(machine, mm, addr).unwrap();
    mm.madvise(VirtAddr(addr + PAGE), PAGE, Advice::DontNeed).unwrap();
    load(machine, mm, addr + PAGE).unwrap();
    assert_eq!(leaf_frames(machine, mm, addr + PAGE), 1);
}

fn leaf_frames(machine: &Hosted, mm: &Space<'_>, addr: u64) -> u64 {
    machine.probe(mm.root(), VirtAddr(addr)).map_or(0, |leaf| leaf.frames)
}

fn collapse(mm: &Space<'_>, addr: u64, len: u64) -> Collapsed {
    mm.collapse(VirtAddr(addr), len).expect("it is mapped")
}

fn counts_in_use(manager: &Manager<'_>) -> u64 {
    manager.pages().lists().stat(Stat::NrMapCountPages)
}

#[test]
fn parts_become_one_leaf_and_nothing_else_changes() {
    with_huge(4, |machine, manager| {
        run(manager, |mm| {
            let file = map_split(manager, mm, HugeSize::Size2M, 3);
            (0..3).for_each(|page| store(machine, mm, BASE + page * HUGE + 8, page + 1).unwrap());
            take_apart(machine, mm, BASE);
            take_apart(machine, mm, BASE + 2 * HUGE);
            assert_eq!(counts_in_use(manager), 1);
            let (rss, tables) = (mm.rss().huge, mm.rss().page_tables);
            let done = collapse(mm, BASE, 3 * HUGE);
            assert_eq!((done.reshaped, done.large, done.all_refused()), (2, 1, 0));
            assert_eq!((mm.rss().huge, mm.rss().page_tables), (rss, tables - 2));
            assert_eq!(counts_in_use(manager), 0, "a page that is mapped whole needs no counts");
            for page in 0..3 {
                assert_eq!(leaf_frames(machine, mm, BASE + page * HUGE), 512);
                assert_eq!(load(machine, mm, BASE + page * HUGE + 8), Ok(page + 1));
                store(machine, mm, BASE + page * HUGE + 8, 7).unwrap();
                let first = machine.probe(mm.root(), VirtAddr(BASE + page * HUGE)).unwrap().frame;
                assert_eq!([0, 1, 511].map(|at| manager.pages().counts().mapcount(first.add(at))), [1; 3]);
            }
            drop(file);
        });
    });
}

/// Memory for counts: a frame has slots for eight pages. A slot that is freed and used again beside others
/// allocates no frame each time, and no frame is kept when every page is whole.
#[test]
fn what_comes_and_goes_keeps_its_memory_for_counts() {
    with_huge(10, |machine, manager| {
        run(manager, |mm| {
            let _file = map_split(manager, mm, HugeSize::Size2M, 10);
            (0..8).for_each(|page| take_apart(machine, mm, BASE + page * HUGE));
            assert_eq!(counts_in_use(manager), 1);
            for _ in 0..3 {
                take_apart(machine, mm, BASE + 8 * HUGE);
                assert_eq!(counts_in_use(manager), 2);
                assert_eq!(collapse(mm, BASE + 8 * HUGE, HUGE).reshaped, 1);
                assert_eq!(counts_in_use(manager), 2, "for the next page");
            }
            assert_eq!(collapse(mm, BASE, 8 * HUGE).reshaped, 8);
            assert_eq!(counts_in_use(manager), 0);
        });
    });
}

#[test]
fn what_is_in_the_way_is_named_and_left() {
    with_huge(6, |machine, manager| {
        run(manager, |mm| {
            let file = map_split(manager, mm, HugeSize::Size2M, 3);
            let refused = |addr: u64, why: Refusal| {
                let (rss, frames) = (mm.rss(), leaf_frames(machine, mm, addr));
                let done = collapse(mm, addr, HUGE);
                assert_eq!((done.refused(why), done.all_refused(), done.collapsed()), (1, 1, 0), "{why:?}");
                assert_eq!((mm.rss(), leaf_frames(machine, mm, addr)), (rss, frames));
                assert!(mm.madvise(VirtAddr(addr), HUGE, Advice::Collapse).is_err());
            };
            (0..3).for_each(|page| store(machine, mm, BASE + page * HUGE + 8, page).unwrap());
            take_apart(machine, mm, BASE);
            // A hole is not filled.
            mm.madvise(VirtAddr(BASE + 200 * PAGE), PAGE, Advice::DontNeed).unwrap();
            refused(BASE, Refusal::Missing);
            load(machine, mm, BASE + 200 * PAGE).unwrap();
            // A mark is not lost.
            mm.write_protect_marked(VirtAddr(BASE + 511 * PAGE), PAGE).unwrap();
            refused(BASE, Refusal::Rights);
            mm.remove_write_protect_marks(VirtAddr(BASE + 511 * PAGE), PAGE).unwrap();
            refused(BASE, Refusal::Rights);
            store(machine, mm, BASE + 511 * PAGE, 1).unwrap();
            assert_eq!(collapse(mm, BASE, HUGE).reshaped, 1);
            // If all of it is marked, the leaf is marked.
            take_apart(machine, mm, BASE);
            mm.write_protect_marked(VirtAddr(BASE), HUGE).unwrap();
            assert_eq!(collapse(mm, BASE, HUGE).reshaped, 1);
            assert!(!machine.probe(mm.root(), VirtAddr(BASE)).unwrap().write, "the mark is still there");
            mm.remove_write_protect_marks(VirtAddr(BASE), HUGE).unwrap();
            store(machine, mm, BASE, 1).unwrap();
            // A page that is mapped whole or not at all needs no collapse.
            mm.mmap(&of_file(&file, Private, BASE + 8 * HUGE, (0, 1))).unwrap();
            store(machine, mm, BASE + 8 * HUGE, 1).unwrap();
            refused(BASE + 8 * HUGE, Refusal::HugePages);
            mm.munmap(VirtAddr(BASE + 8 * HUGE), HUGE).unwrap();
            let half = collapse(mm, BASE + PAGE, HUGE);
            assert_eq!((half.collapsed(), half.all_refused(), half.large), (0, 0, 0));
        });
    });
}

#[test]
fn a_bad_page_stays_in_parts() {
    let machine = HostedConfig::new(256 << 20).build().expect("the host refused a machine");
    machine.run_on(CpuId(0), || {
        let manager =
            hosted::raw::memory_manager(&machine, &ranges_of(&machine), &Config::default()).unwrap();
        let _ = manager.huge_pools().resize(manager.pages(), HugeSize::Size2M, NodeSet::ALL, 4);
        run(&manager, |mm| {
            let _file = map_split(&manager, mm, HugeSize::Size2M, 2);
            (0..2).for_each(|page| store(&machine, mm, BASE + page * HUGE, 1).unwrap());
            take_apart(&machine, mm, BASE);
            let leaf = machine.probe(mm.root(), VirtAddr(BASE + 9 * PAGE)).unwrap();
            manager.memory_failure(leaf.frame).unwrap();
            take_apart(&machine, mm, BASE + HUGE);
            let done = collapse(mm, BASE, 2 * HUGE);
            assert_eq!((done.refused(Refusal::Lost), done.reshaped), (1, 1), "it costs that page alone");
            // A page that was never faulted in again is a hole, which no larger leaf covers either.
            mm.madvise(VirtAddr(BASE), HUGE, Advice::DontNeed).unwrap();
            (0..512).filter(|&page| page != 9).for_each(|page| {
                load(&machine, mm, BASE + page * PAGE).unwrap();
            });
            assert_eq!(collapse(mm, BASE, HUGE).refused(Refusal::Missing), 1);
        });
        manager.validate().unwrap();
    });
}

#[test]
fn a_gigantic_page_goes_there_and_back_in_both_ways() {
    with_config(HostedConfig::new(3 * GIB), HugeSize::Size1G, 1, |machine, manager| {
        run(manager, |mm| {
            let _file = map_split(manager, mm, HugeSize::Size1G, 1);
            for steps in [CollapseSteps::Staged, CollapseSteps::Direct] {
                (0..64).for_each(|at| store(machine, mm, BASE + at * 8 * HUGE + 16, at).unwrap());
                (0..512).step_by(7).for_each(|block| take_apart(machine, mm, BASE + block * HUGE));
                let first = machine.probe(mm.root(), VirtAddr(BASE)).unwrap().frame;
                // A hole at the end: nothing has changed, also at the start.
                mm.madvise(VirtAddr(BASE + GIB - PAGE), PAGE, Advice::DontNeed).unwrap();
                let done = mm.collapse_in(VirtAddr(BASE), GIB, steps).unwrap();
                assert_eq!((done.refused(Refusal::Missing), done.collapsed()), (1, 0));
                assert_eq!([0, 7, 14].map(|block| leaf_frames(machine, mm, BASE + block * HUGE)), [1; 3]);
                load(machine, mm, BASE + GIB - PAGE).unwrap();
                // A part of it by itself.
                let part = collapse(mm, BASE + 7 * HUGE, 8 * HUGE);
                assert_eq!((part.reshaped, part.large, part.gigantic), (2, 6, 0));
                let before = mm.rss().huge;
                let done = mm.collapse_in(VirtAddr(BASE), GIB, steps).unwrap();
                assert_eq!((done.gigantic, done.all_refused()), (1, 0));
                assert_eq!(leaf_frames(machine, mm, BASE + 77 * HUGE), 1 << 18);
                assert_eq!((mm.rss().huge, counts_in_use(manager)), (before, 0));
                assert_eq!(mm.collapse_in(VirtAddr(BASE), GIB, steps).unwrap().large, 1);
                for at in 0..64 {
                    assert_eq!(load(machine, mm, BASE + at * 8 * HUGE + 16), Ok(at));
                }
                for at in [0, 1, 511, 512, (1 << 18) - 1] {
                    assert_eq!(manager.pages().counts().mapcount(first.add(at)), 1);
                }
            }
        });
    });
}

/// A collapse opens no bracket, whatever the size: the secondary MMU keeps its copies, goes on using them,
/// and installs a larger one after the hint.
#[test]
fn a_secondary_mmu_is_not_stopped() {
    let machine = HostedConfig::new(3 * GIB).with_cpus(2).build().expect("the host refused a machine");
    machine.run_on(CpuId(0), || {
        let manager =
            hosted::raw::memory_manager(&machine, &ranges_of(&machine), &Config::default()).unwrap();
        let _ = manager.huge_pools().resize(manager.pages(), HugeSize::Size1G, NodeSet::ALL, 1);
        run(&manager, |mm| {
            let _file = map_split(&manager, mm, HugeSize::Size1G, 1);
            let registered = mm.register_secondary();
            let nested = Nested::new(&machine, mm, VirtAddr(BASE), GIB, 1);
            let cpu = nested.cpu(0);
            for steps in [CollapseSteps::Staged, CollapseSteps::Direct] {
                take_apart(&machine, mm, BASE);
                for at in (0..HUGE).step_by(PAGE as usize) {
                    cpu.store(mm, at, at).unwrap();
                }
                cpu.store(mm, 5 * HUGE, 5).unwrap();
                assert!(nested.copies(0..GIB).len() > 512);
                nested.forget_stats();
                let done = during("collapse", || mm.collapse_in(VirtAddr(BASE), GIB, steps).unwrap());
                assert_eq!(
                    (done.gigantic, nested.stats().brackets.get("collapse").map(|all| all.count)),
                    (1, None)
                );
                assert_eq!(nested.stats().collapses, 2, "a copy of 2 MiB, then one of 1 GiB");
            }
            for at in (0..HUGE).step_by(PAGE as usize) {
                assert_eq!(cpu.load(mm, at), Ok(at));
            }
            assert_eq!(nested.copy_at(0).unwrap().bytes, GIB, "a larger copy came");
            nested.check();
            drop(cpu);
            drop(nested);
            drop(registered);
        });
        machine.assert_clean();
    });
}

/// Secondary MMUs are told of larger leaves in steps, and tasks may fault while they are told.
#[test]
fn a_secondary_mmu_is_told_while_tasks_fault() {
    let machine = HostedConfig::new(3 * GIB).with_cpus(2).build().expect("the host refused a machine");
    let ((ask, asked), (answer, answers)) = (mpsc::channel(), mpsc::channel());
    let served = Arc::new(Mutex::new(Vec::new()));
    let watched = Watched::new(&machine);
    let notes = Arc::clone(&served);
    watched.when_told(move || {
        let _sent = ask.send(());
        notes.lock().unwrap().push(answers.recv_timeout(PATIENCE).is_ok());
    });
    machine.run_on(CpuId(0), || {
        let manager =
            hosted::raw::memory_manager(&watched, &ranges_of(&machine), &Config::default()).unwrap();
        assert_eq!(manager.resize_huge(HugeSize::Size1G, NodeSet::ALL, 1).after, 1);
        let file = manager.huge_file(HugeSize::Size1G, GIB).unwrap();
        let mm = manager.new_mm().unwrap();
        let backing = Backing::File { file: &file, page_offset: 0 };
        mm.mmap(&MapRequest { sharing: Shared, backing, huge: None, ..private(BASE, GIB / HUGE) }).unwrap();
        mm.madvise(VirtAddr(BASE), GIB, Advice::Split).unwrap();
        mm.fault(VirtAddr(BASE), Access::Write).unwrap();
        for table in 0..GIB / HUGE {
            mm.madvise(VirtAddr(BASE + table * HUGE), PAGE, Advice::DontNeed).unwrap();
            mm.fault(VirtAddr(BASE + table * HUGE), Access::Write).unwrap();
        }
        let registered = mm.register_secondary();
        std::thread::scope(|scope| {
            // Ends when the watched machine drops its sender.
            let (other, machine) = (&mm, &machine);
            scope.spawn(move || {
                machine.run_on(CpuId(1), || {
                    while asked.recv().is_ok() {
                        assert!(other.translate(VirtAddr(BASE), Access::Write).is_some());
                        let _sent = answer.send(());
                    }
                });
            });
            assert_eq!(mm.collapse(VirtAddr(BASE), GIB).unwrap().gigantic, 1);
            watched.when_told(|| {});
        });
        drop(registered);
        drop(mm);
        drop(file);
    });
    assert_eq!(*served.lock().unwrap(), [true; 9], "once for every 128 MiB, once for the whole page");
}

/// All ways of counting give the same answers, where they have one, and all memory is free in the end.
#[test]
fn every_way_of_counting_agrees() {
    for counts in CountScheme::ALL {
        let machine = HostedConfig::new(3 * GIB).build().expect("the host refused a machine");
        machine.run_on(CpuId(0), || {
            let allocator = AllocatorConfig { counts, ..AllocatorConfig::default() };
            let config = Config { allocator, descriptors: DescriptorPolicy::InBlock, ..Config::default() };
            let manager = hosted::raw::memory_manager(&machine, &ranges_of(&machine), &config).unwrap();
            manager.pages().lists().drain_local();
            let before = manager.meminfo().frames.used;
            let _ = manager.huge_pools().resize(manager.pages(), HugeSize::Size1G, NodeSet::ALL, 1);
            let _ = manager.huge_pools().resize(manager.pages(), HugeSize::Size2M, NodeSet::ALL, 4);
            let each_frame = matches!(counts, CountScheme::Dense | CountScheme::PerFrame);
            run(&manager, |mm| {
                let file = map_split(&manager, mm, HugeSize::Size1G, 1);
                take_apart(&machine, mm, BASE);
                store(&machine, mm, BASE + 8, 5).unwrap();
                let first = machine.probe(mm.root(), VirtAddr(BASE)).unwrap().frame;
                mm.madvise(VirtAddr(BASE + 5 * PAGE), 3 * PAGE, Advice::DontNeed).unwrap();
                let count = |at: u64| manager.pages().counts().mapcount(first.add(at));
                if each_frame {
                    assert_eq!([4, 5, 7, 8, 512].map(count), [1, 0, 0, 1, 1], "{counts:?}");
                } else if counts == CountScheme::TotalMapped {
                    assert_eq!(count(5), 1, "the average of the page");
                } else {
                    assert_eq!(count(5), 512 - 3 + 511, "every leaf, whatever it maps");
                }
                let other = manager.new_mm().unwrap();
                other.mmap(&of_file(&file, Shared, BASE, (0, 512))).unwrap();
                other.fault(VirtAddr(BASE), quire::vm::Access::Read).unwrap();
                if each_frame {
                    assert_eq!([4, 5, 512].map(count), [2, 1, 2], "{counts:?}");
                }
                other.exit();
                (5..8).for_each(|page| assert_eq!(load(&machine, mm, BASE + page * PAGE), Ok(0)));
                for steps in [CollapseSteps::Staged, CollapseSteps::Direct] {
                    assert_eq!(mm.collapse_in(VirtAddr(BASE), GIB, steps).unwrap().gigantic, 1, "{counts:?}");
                    assert_eq!([0, 5, 512, 262_143].map(count), [1; 4], "{counts:?}");
                    take_apart(&machine, mm, BASE + 3 * HUGE);
                }
                assert_eq!(load(&machine, mm, BASE + 8), Ok(5));
                // Private memory, and its copies.
                let own = BASE + 2 * GIB;
                mm.mmap(&private(own, 2)).unwrap();
                store(&machine, mm, own + 8, 6).unwrap();
                let child = mm.fork().unwrap();
                let shown = machine.probe(mm.root(), VirtAddr(own)).unwrap().frame;
                assert_eq!(manager.pages().counts().mapcount(shown), 2, "{counts:?}");
                store(&machine, mm, own + 8, 7).unwrap();
                assert_eq!(manager.pages().counts().mapcount(shown), 1, "{counts:?}");
                child.exit();
                assert_eq!(load(&machine, mm, own + 8), Ok(7));
            });
            for size in HugeSize::ALL {
                let _ = manager.huge_pools().resize(manager.pages(), size, NodeSet::ALL, 0);
            }
            manager.pages().lists().drain_local();
            assert_eq!(manager.meminfo().frames.used, before, "{counts:?}");
            manager.validate().unwrap();
            machine.assert_clean();
        });
    }
}

/// Threads store all the while, others drop parts and collapse, and a file is truncated: no store is lost,
/// and counts end at zero.
#[test]
fn collapses_beside_stores_faults_and_truncation() {
    const PAGES: u64 = 6;
    let machine = HostedConfig::new(128 << 20).with_cpus(4).build().expect("the host refused a machine");
    let manager = machine.run_on(CpuId(0), || {
        hosted::raw::memory_manager(&machine, &ranges_of(&machine), &Config::default()).unwrap()
    });
    let file = machine.run_on(CpuId(0), || {
        let _ = manager.huge_pools().resize(manager.pages(), HugeSize::Size2M, NodeSet::ALL, PAGES);
        manager.huge_file(HugeSize::Size2M, PAGES * HUGE).unwrap()
    });
    let mm = machine.run_on(CpuId(0), || {
        let mm = manager.new_mm().unwrap();
        mm.mmap(&of_file(&file, Shared, BASE, (0, PAGES))).unwrap();
        mm.madvise(VirtAddr(BASE), PAGES * HUGE, Advice::Split).unwrap();
        mm
    });
    let (over, collapsed) = (AtomicBool::new(false), AtomicU64::new(0));
    let end = std::time::Instant::now() + std::time::Duration::from_millis(1500);
    let stored = machine.spawn_cpus(4, |cpu| {
        let mut rng = fastrand::Rng::with_seed(cpu.0.into());
        mm.switch_in();
        let mut sums = [0u64; 4];
        while !over.load(Ordering::Relaxed) {
            match cpu.0 {
                // Two threads increment words of their own, in pages that are never cut off.
                0 | 1 => {
                    let word = rng.usize(..4);
                    let at = BASE + word as u64 * HUGE + rng.u64(..512) * PAGE + u64::from(cpu.0) * 8;
                    if machine.fetch_add(VirtAddr(at), 1).is_ok() {
                        sums[word] += 1;
                    } else {
                        mm.fault(VirtAddr(at), quire::vm::Access::Write).unwrap();
                    }
                }
                // One thread drops parts.
                2 => {
                    let at = BASE + rng.u64(..PAGES * 512) * PAGE;
                    let len = rng.u64(1..8).min((BASE + PAGES * HUGE - at) / PAGE) * PAGE;
                    mm.madvise(VirtAddr(at), len, Advice::DontNeed).unwrap();
                    if rng.u32(..16) == 0 {
                        file.truncate(4 * HUGE).unwrap();
                        file.truncate(PAGES * HUGE).unwrap();
                    }
                }
                _ => {
                    for page in 0..PAGES * 512 {
                        let done = mm.fault(VirtAddr(BASE + page * PAGE), quire::vm::Access::Read);
                        let cut = done == Err(FaultError::BeyondEnd) && page >= 4 * 512;
                        assert!(done.is_ok() || cut, "{done:?}");
                    }
                    let done = mm.collapse(VirtAddr(BASE), PAGES * HUGE).unwrap();
                    collapsed.fetch_add(done.collapsed(), Ordering::Relaxed);
                    over.store(std::time::Instant::now() > end, Ordering::Relaxed);
                }
            }
        }
        mm.switch_out();
        sums
    });
    assert!(collapsed.load(Ordering::Relaxed) > 0, "nothing was ever collapsed");
    machine.run_on(CpuId(0), || {
        mm.switch_in();
        let mut found = [0u64; 4];
        for (page, sum) in found.iter_mut().enumerate() {
            for at in (0..512).flat_map(|frame| [0, 8].map(|word| frame * PAGE + word)) {
                *sum += load(&machine, &mm, BASE + page as u64 * HUGE + at).unwrap();
            }
        }
        let expected: Vec<u64> = (0..4).map(|page| stored.iter().map(|sums| sums[page]).sum()).collect();
        assert_eq!(found.as_slice(), expected.as_slice(), "stores were lost");
        mm.validate().unwrap();
        mm.switch_out();
        mm.exit();
        drop(file);
        assert_eq!(counts_in_use(&manager), 0);
        manager.validate().unwrap();
    });
    machine.assert_clean();
}

/// A collapse keeps the protection that all parts have.
#[test]
fn rights_of_the_whole_survive() {
    with_huge(2, |machine, manager| {
        run(manager, |mm| {
            let _file = map_split(manager, mm, HugeSize::Size2M, 2);
            store(machine, mm, BASE, 3).unwrap();
            take_apart(machine, mm, BASE);
            mm.mprotect(VirtAddr(BASE), HUGE, R).unwrap();
            assert_eq!(collapse(mm, BASE, HUGE).reshaped, 1);
            assert!(store(machine, mm, BASE, 4).is_err());
            mm.mprotect(VirtAddr(BASE), HUGE, RW).unwrap();
            store(machine, mm, BASE, 4).unwrap();
            assert_eq!(leaf_frames(machine, mm, BASE), 512);
        });
    });
}

/// A mapping may be unmapped after a collapse has checked it. The answer is then that there is no mapping,
/// not that it has holes.
#[test]
fn a_mapping_that_goes_after_the_look_is_none() {
    let config = HostedConfig::new(128 << 20).with_cpus(2);
    with_config(config, HugeSize::Size2M, 1, |machine, manager| {
        let (mut round, mut gone) = (0, 0);
        loop {
            let mm = manager.new_mm().unwrap();
            let file = map_split(manager, &mm, HugeSize::Size2M, 1);
            within(&mm, || take_apart(machine, &mm, BASE));
            let unmap = || mm.munmap(VirtAddr(BASE), HUGE).unwrap();
            // An error if it was unmapped before the check.
            let collapse = || mm.collapse(VirtAddr(BASE), HUGE).unwrap_or_default();
            let held = held_up(machine, InterruptPlan::Nth(round), PATIENCE, collapse, unmap);
            let [none, all] = [held.first.refused(Refusal::TooSmall), held.first.all_refused()];
            assert_eq!(none, all, "call {round}: {:?}", held.first);
            (round, gone) = (round + 1, gone + none);
            mm.exit();
            drop(file);
            if round > held.calls {
                break;
            }
        }
        println!("{round} moments, at {gone} of which the mapping went after the look");
        assert!(gone > 0);
    });
}
