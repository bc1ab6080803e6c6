//! A gigantic page in parts, while one CPU is held up in the middle of a change and another makes a second
//! one: at every moment.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hosted::{FailurePlan, Hosted, HostedConfig, InterruptPlan, Nested};
use quire::addr::VirtAddr;
use quire::cpu::CpuId;
use quire::error::{FaultError, MemoryFailureError};
use quire::hugetlb::{HugeFailure, HugeSize, PoolInfo};
use quire::manager::{Config, Failed};
use quire::page_alloc::{AllocatorConfig, NodeSet, Zeroes};
use quire::vm::Sharing::Shared;
use quire::vm::{Access, Advice, AnswerMode, CollapseSteps, File, UserfaultChanges, UserfaultModes};

use crate::hugetlb::world::{BASE, HUGE, Manager, Space, info, load, of_file, within};
use testkit::{held_up_to_look, ranges_of};

const PAGE: u64 = 4096;
const GIB: u64 = 1 << 30;
/// How long one CPU waits for another, which may in turn wait for the first.
const PATIENCE: Duration = Duration::from_millis(15);

/// A machine whose pool of 1 GiB has one page, or may take a surplus one; no page is cleared, nor read to see
/// that it need not be. All memory is free at the end.
pub(super) fn with_page(surplus: bool, test: impl FnOnce(&Hosted, &Manager<'_>)) {
    let config = HostedConfig { clearing: false, ..HostedConfig::new(2 * GIB + (64 << 20)) };
    let machine = config.with_cpus(2).build().expect("the host refused a machine");
    let zeroes = Zeroes { verify: false, ..Zeroes::default() };
    let allocator = AllocatorConfig { zeroes, ..AllocatorConfig::default() };
    machine.run_on(CpuId(0), || {
        let config = Config { allocator, ..Config::default() };
        let manager =
            hosted::raw::memory_manager(&machine, &ranges_of(&machine), &config).expect("a manager");
        manager.pages().lists().drain_local();
        let before = manager.meminfo().frames.used;
        let pools = manager.huge_pools();
        if surplus {
            pools.set_overcommit(manager.pages(), HugeSize::Size1G, 1);
        } else {
            assert_eq!(pools.resize(manager.pages(), HugeSize::Size1G, NodeSet::ALL, 1).after, 1);
        }
        test(&machine, &manager);
        // A page with a bad frame has left the pool.
        let kept = u64::from(!surplus && manager.meminfo().bad == 0);
        let left = PoolInfo { total: kept, free: kept, ..PoolInfo::default() };
        assert_eq!(info(&manager, HugeSize::Size1G), left);
        manager.validate().expect("broken machine");
        let _ = pools.resize(manager.pages(), HugeSize::Size1G, NodeSet::ALL, 0);
        manager.pages().lists().drain_all();
        assert_eq!(manager.meminfo().frames.used, before + manager.meminfo().bad, "frames were lost");
        machine.assert_clean();
    });
}

fn in_parts<'m>(manager: &'m Manager<'_>, file: &File<'m, Hosted>) -> Space<'m> {
    let mm = manager.new_mm().expect("memory");
    mm.mmap(&of_file(file, Shared, BASE, (0, GIB / HUGE))).expect("a page is reserved");
    mm.madvise(VirtAddr(BASE), GIB, Advice::Split).expect("it is mapped");
    mm
}

/// Drops one 4 KiB page.
fn drop_part(mm: &Space<'_>, at: u64) {
    mm.madvise(VirtAddr(at), PAGE, Advice::DontNeed).expect("memory");
}

/// Makes 4 KiB leaves map the 2 MiB at `at`, and leaves of 2 MiB those around.
fn take_apart(machine: &Hosted, mm: &Space<'_>, at: u64) {
    load(machine, mm, at).expect("it is mapped");
    drop_part(mm, at);
    load(machine, mm, at).expect("it is mapped");
}

/// Runs `first` on CPU 0, held up at its `round`-th call of the platform, while CPU 1 runs `second`. Returns
/// how many calls there were, and `seen` at the end of that time, which gets whether CPU 1 had finished.
pub(super) fn held_up(
    machine: &Hosted,
    round: u64,
    (first, second): (impl Fn() + Sync, impl Fn() + Sync),
    seen: impl Fn(bool) -> bool + Sync,
) -> (u64, bool) {
    let met = AtomicBool::new(false);
    let look = |through| met.store(seen(through), Ordering::SeqCst);
    let held = held_up_to_look(machine, InterruptPlan::Nth(round), PATIENCE, first, second, look);
    (held.calls, met.into_inner())
}

/// Calls `meet` at so many of all moments, the last ones included. Returns at how many it was true.
pub(super) fn at_moments(most: u64, mut meet: impl FnMut(u64) -> (u64, bool)) -> u64 {
    let (all, _) = meet(u64::MAX);
    let step = (all / most).max(1);
    let met = (0..=all).rev().step_by(step as usize).filter(|&round| meet(round).1).count() as u64;
    println!("met at {met} of {} moments, of {all} calls", all / step + 1);
    met
}

/// A truncation that unmaps a page which a collapse still counts down, with no lock held, waits for the
/// collapse. Otherwise the page would be handed out again, or freed, with counts in it (invariant 5).
#[test]
fn a_page_is_not_freed_before_it_is_counted_down() {
    for steps in [CollapseSteps::Staged, CollapseSteps::Direct] {
        with_page(true, |machine, manager| {
            let met = at_moments(60, |round| {
                let file = manager.huge_file(HugeSize::Size1G, GIB).expect("memory");
                let mm = in_parts(manager, &file);
                within(&mm, || [0, 3, 7, 300].map(|block| take_apart(machine, &mm, BASE + block * HUGE)));
                let collapse = || {
                    mm.switch_in();
                    _ = mm.collapse_in(VirtAddr(BASE), GIB, steps);
                    mm.switch_out();
                };
                let cut = || file.truncate(0).expect("whole pages");
                let gone = |through: bool| !through && machine.probe(mm.root(), VirtAddr(BASE)).is_none();
                let met = held_up(machine, round, (collapse, cut), gone);
                mm.exit();
                drop(file);
                assert_eq!(info(manager, HugeSize::Size1G).total, 0, "a surplus page leaves the pool");
                met
            });
            assert!(met > 1, "no truncation had to wait for a count");
        });
    }
}

/// A staged collapse that is stopped halfway sends hints for the leaves of 2 MiB that it installed.
#[test]
fn a_collapse_that_stops_halfway_is_told() {
    with_page(false, |machine, manager| {
        let mut stopped = 0;
        at_moments(80, |round| {
            let file = manager.huge_file(HugeSize::Size1G, GIB).expect("memory");
            let mm = in_parts(manager, &file);
            let registered = mm.register_secondary();
            let nested = Nested::new(machine, &mm, VirtAddr(BASE), GIB, 1);
            let cpu = nested.cpu(0);
            within(&mm, || {
                take_apart(machine, &mm, BASE);
                (0..HUGE).step_by(PAGE as usize).for_each(|at| _ = cpu.load(&mm, at).expect("it is mapped"));
            });
            assert_eq!(nested.copy_at(0).map(|copy| copy.bytes), Some(PAGE));
            let collapse = || {
                mm.switch_in();
                _ = mm.collapse_in(VirtAddr(BASE), GIB, CollapseSteps::Staged);
                mm.switch_out();
            };
            let last = BASE + GIB - PAGE;
            let met = held_up(machine, round, (collapse, || drop_part(&mm, last)), |through| through);
            let leaf = machine.probe(mm.root(), VirtAddr(BASE)).expect("it stays");
            // Or it had finished before the part was dropped, and was undone by the drop.
            let told = nested.stats().collapses > 0;
            assert_eq!(told, leaf.frames > 1, "at call {round}");
            stopped += u64::from(met.1 && told);
            nested.check();
            drop(cpu);
            drop(nested);
            drop(registered);
            mm.exit();
            met
        });
        assert!(stopped > 0, "no collapse was stopped between its steps");
    });
}

/// Without memory for a split the leaf stays and the caller is told so, since a handler would answer for the
/// parts beside the bad one; nor do marks beside it change. The next call goes on.
#[test]
fn bad_memory_wipes_out_no_mark_even_without_memory() {
    with_page(false, |machine, manager| {
        let file = manager.huge_file(HugeSize::Size1G, GIB).expect("memory");
        let mm = in_parts(manager, &file);
        let handler = manager.userfault(UserfaultChanges::NONE).expect("few handlers");
        let (marked, bad) = (BASE + 5 * PAGE, BASE + 3 * HUGE + 7 * PAGE);
        within(&mm, || {
            take_apart(machine, &mm, BASE);
            drop_part(&mm, marked);
            mm.userfault_register(&handler, VirtAddr(BASE), GIB, UserfaultModes::MISSING).expect("memory");
            mm.userfault_poison(VirtAddr(marked), PAGE, AnswerMode::default())
                .all()
                .expect("nothing is there");
            let leaf = machine.probe(mm.root(), VirtAddr(bad)).expect("it is mapped");
            assert_eq!(leaf.frames, 512);
            let failed = leaf.frame.add((bad - leaf.addr.0) / PAGE);
            machine.set_failures(FailurePlan::From(0));
            assert_eq!(manager.memory_failure(failed), Err(MemoryFailureError::OutOfMemory));
            machine.set_failures(FailurePlan::Off);
            assert_eq!(machine.probe(mm.root(), VirtAddr(bad)), Some(leaf));
            assert_eq!(manager.memory_failure(failed), Ok(Failed::Huge(HugeFailure::InUse)));
            assert_eq!(manager.memory_failure(failed), Err(MemoryFailureError::AlreadyPoisoned));
            assert!(machine.probe(mm.root(), VirtAddr(bad)).is_none());
            assert_eq!(machine.probe(mm.root(), VirtAddr(bad + PAGE)).map(|part| part.frames), Some(1));
            mm.userfault_unregister(VirtAddr(BASE), GIB).expect("memory");
            for at in [marked, bad] {
                assert_eq!(mm.fault(VirtAddr(at), Access::Read).err(), Some(FaultError::Poisoned));
            }
            assert!(machine.probe(mm.root(), VirtAddr(BASE)).is_some(), "its neighbour stays");
            load(machine, &mm, bad + PAGE).expect("the rest comes back");
        });
        mm.exit();
        drop((handler, file));
    });
}
