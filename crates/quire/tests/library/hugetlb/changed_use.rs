//! Pages that get another use between two looks at them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hosted::{HostedConfig, InterruptPlan};
use quire::addr::{Frame, Order, VirtAddr};
use quire::hugetlb::HugeFailure;
use quire::hugetlb::HugeSize::{Size1G, Size2M};
use quire::page_alloc::NodeSet;
use quire::platform::Context;
use quire::vm::{Access, MapRequest};
use testkit::{PATIENCE, held_up, unless_stuck};

use crate::hugetlb::support::{BOTH, GIB, MIB, World, two_nodes, with_pools};
use crate::hugetlb::world::{BASE, check, private, with_config};

/// Of this many instructions in a row the page is freed after one.
const STRIDE: usize = 5;

/// A page of 1 GiB is unmapped, split into pages of 2 MiB and mapped again as one of those while a task begins to move
/// it. What begins there now is of another size.
#[test]
fn a_page_that_is_demoted_before_its_move_begins_is_not_moved_as_a_whole() {
    with_config(HostedConfig::new(4 * GIB).with_cpus(2), Size1G, 1, |machine, manager| {
        let (pools, pages) = (manager.huge_pools(), manager.pages());
        let mut demoted = 0;
        for moment in 0..16 {
            _ = pools.resize(pages, Size2M, NodeSet::ALL, 0);
            _ = pools.resize(pages, Size1G, NodeSet::ALL, 1);
            let mm = manager.new_mm().unwrap();
            // Nothing is stored, so all of it stays known to be zero, and its first part is allocated first.
            mm.mmap(&MapRequest { len: GIB, huge: Some(Size1G), ..private(BASE, 1) }).unwrap();
            mm.fault(VirtAddr(BASE), Access::Read).unwrap();
            let mapped = || mm.translate(VirtAddr(BASE), Access::Read).map(|found| found.frame);
            let old = mapped().unwrap();
            let demote = || {
                mm.munmap(VirtAddr(BASE), GIB).unwrap();
                let done = pools.demote(pages, NodeSet::ALL, 1).done == 1;
                done && mm.mmap(&private(BASE, 1)).is_ok()
                    && mm.fault(VirtAddr(BASE), Access::Write).is_ok()
                    && mapped() == Some(old)
            };
            let plan = InterruptPlan::Nth(moment);
            let held = held_up(machine, plan, PATIENCE, || manager.migrate(old), demote);
            demoted += u32::from(held.in_time && held.second);
            let moved = held.first.unwrap_or(0);
            assert!(moved <= Order::BLOCK.frames() || !held.second, "at moment {moment} of {}", held.calls);
            mm.exit();
            check(manager);
        }
        assert!(demoted > 0, "no moment was before the move");
        _ = pools.resize(pages, Size2M, NodeSet::ALL, 0);
        _ = pools.resize(pages, Size1G, NodeSet::ALL, 1);
    });
}

/// The call of the platform with which a CPU that empties the pool begins to free its only page.
fn call_that_frees(world: &World<'_, '_>, page: Frame) -> u64 {
    let [calls, last] = [const { AtomicU64::new(0) }; 2];
    let look = || {
        let call = calls.fetch_add(1, Ordering::Relaxed);
        if world.pages.frames().is_huge(page, Order::BLOCK) {
            last.store(call, Ordering::Relaxed);
        }
    };
    let empty = || world.pools.resize(world.pages, Size2M, BOTH, 0);
    world.machine.interrupt_at_calls(InterruptPlan::Every(1), Context::HardInterrupt, look, empty);
    last.into_inner()
}

/// A page that has left its pool is freed while another CPU looks whether it is a free one, after any instruction of
/// that. What is read of it must be one page's.
#[test]
fn a_page_that_is_freed_while_it_is_judged_is_none() {
    with_pools(two_nodes(16 * MIB), |world| {
        let (machine, pages, pools) = (world.machine, world.pages, world.pools);
        let grow = || {
            _ = pools.resize(pages, Size2M, BOTH, 1);
            let page = pools.take(pages, Size2M, NodeSet::ALL, false).unwrap();
            hosted::raw::RawPools::give_raw(pools, pages, Size2M, page, false);
            page
        };
        let call = call_that_frees(world, grow());
        let scene = |step: u64| {
            let page = grow();
            let is_page = || pages.frames().is_huge(page, Order::BLOCK);
            let [asked, judges, freed] = [const { AtomicBool::new(false) }; 3];
            let came =
                |flag: &AtomicBool| testkit::within(Duration::from_secs(10), || flag.load(Ordering::SeqCst));
            let ends = machine.spawn_cpus(2, |cpu| {
                if cpu.0 == 1 {
                    let hold_up = || {
                        asked.store(true, Ordering::SeqCst);
                        came(&judges);
                    };
                    let empty = || pools.resize(pages, Size2M, BOTH, 0);
                    let plan = InterruptPlan::Nth(call);
                    machine.interrupt_at_calls(plan, Context::HardInterrupt, hold_up, empty);
                    return None;
                }
                came(&asked);
                let hold_up = || {
                    judges.store(true, Ordering::SeqCst);
                    freed.store(unless_stuck(machine, PATIENCE, || !is_page()), Ordering::SeqCst);
                };
                let judge = || pools.memory_failure(pages, page);
                // SAFETY: H7: the handler uses atomics of this test alone, and no heap.
                let ran = unsafe {
                    machine.interrupt_at_steps(
                        InterruptPlan::Nth(step),
                        Context::HardInterrupt,
                        hold_up,
                        judge,
                    )
                };
                judges.store(true, Ordering::SeqCst);
                let ran = ran.expect("signals");
                Some((ran.events, ran.result))
            });
            let (steps, judged) = ends.into_iter().flatten().next().expect("CPU 0 did its part");
            assert_ne!(judged, HugeFailure::Reserved, "after step {step} of {steps}");
            world.check();
            (steps, freed.into_inner())
        };
        // Before the page's block is locked it can be freed, and afterwards.
        let (mut before, mut locked) = (0, 0);
        for step in (0..).step_by(STRIDE) {
            let (steps, freed) = scene(step);
            match (freed, locked) {
                (true, 0) => before += 1,
                (true, _) => break,
                (false, _) => locked += 1,
            }
            assert!(step < steps, "no instruction of {steps} had the lock");
        }
        assert!(before > 0);
    });
}
