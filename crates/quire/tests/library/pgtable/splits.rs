//! Large leaves that are split together, by a move to another alignment: the cost, what is kept, and the
//! state when memory runs out.

use hosted::raw::RawTables;
use std::sync::atomic::{AtomicBool, Ordering};

use hosted::{Counters, FailurePlan, Hosted, HostedConfig, InterruptPlan};
use quire::addr::{Order, PageSize, VirtAddr, VirtRange};
use quire::arch::EntryFlags;
use quire::error::MapError;
use quire::limits::{SPLIT_BATCH, TABLE_ENTRIES};
use quire::pgtable::MoveError;
use quire::platform::Context;
use quire::stats::Stat;
use quire::tlb::{FlushBatch, MmContext};

use crate::pgtable::support::*;

const LARGE: u64 = 2 * MIB;
/// Aligned to a page only.
const TO: VirtAddr = VirtAddr(700 * GIB + 4096);

fn config(leaves: u64) -> HostedConfig {
    HostedConfig::new(leaves * LARGE + 32 * MIB).with_cpus(3)
}

fn populate_leaves(machine: &Hosted, allocator: &Allocator<'_>, context: &MmContext, all: VirtRange) {
    let addrs = (all.start.0..all.end.0).step_by(LARGE as usize);
    addrs.for_each(|addr| _ = populate_large(machine, allocator, context, VirtAddr(addr)));
}

/// Moves a range and makes the flush that is owed.
fn move_to(
    allocator: &Allocator<'_>,
    context: &MmContext,
    from: VirtRange,
    to: VirtAddr,
) -> Result<(), MoveError> {
    let mut owed = FlushBatch::new();
    let moved = page_tables(allocator, context).move_range(from, to, &mut owed);
    owed.flush(allocator, context);
    moved
}

/// The cost of moving 64 large leaves from `start` to [`TO`] while these CPUs run them. Checks that each page
/// is in its place then, and counted once.
fn cost_of_64(start: u64, cpus: &[u32]) -> Counters {
    let mut cost = None;
    with_space(config(64), |machine, allocator, context| {
        let all = range(start, 64 * LARGE);
        populate_leaves(machine, allocator, context, all);
        running(machine, context, cpus, || {
            let shifted = |(addr, frame, user)| (addr - start + TO.0, frame, user);
            let expected = pages(machine, context).into_iter().map(shifted).collect::<Vec<_>>();
            for &cpu in cpus {
                let store = |at| machine.write(VirtAddr(start + at * LARGE + 5), &[at as u8]).unwrap();
                machine.run_on(quire::cpu::CpuId(cpu), || (0..64).for_each(store));
            }
            machine.reset_counters();
            let [split] = counted(allocator, [Stat::ThpSplitPmd], || {
                move_to(allocator, context, all, TO).unwrap();
            });
            cost = Some(machine.counters());
            assert_eq!(split, 64);
            assert!(pages(machine, context) == expected, "a page is not where it belongs");
            assert!(
                expected
                    .iter()
                    .all(|&(_, frame, _)| allocator.counts().mapcount(quire::addr::Frame(frame)) == 1)
            );
            for &cpu in cpus {
                machine.run_on(quire::cpu::CpuId(cpu), || {
                    let (mut byte, there) = ([0], |at: u64, base: u64| VirtAddr(base + at * LARGE + 5));
                    for at in 0..64 {
                        machine.read(there(at, TO.0), &mut byte).unwrap();
                        assert_eq!(byte, [at as u8]);
                        assert!(machine.read(there(at, start), &mut byte).is_err());
                    }
                });
            }
        });
        assert_eq!(check(allocator, context).leaves, 64 * 512);
    });
    cost.expect("nothing was moved")
}

/// Invariant 7: one flush for 32 large leaves, and the one that the move owes. It names each leaf, and
/// reaches only CPUs that run the address space; without any, there is none.
#[test]
fn large_leaves_are_split_32_with_a_flush() {
    let flushes = |counters: Counters| {
        let Counters { flushes_local, flushes_remote, cpus_targeted, .. } = counters;
        (flushes_local, flushes_remote, cpus_targeted)
    };
    let cost = cost_of_64(GIB, &[0, 2]);
    assert_eq!(flushes(cost), (3, 3, 3));
    assert_eq!((cost.flushes_range, cost.flushes_address_space, cost.flushes_tables), (4, 2, 0));
    assert_eq!(cost.pages_flushed, 4 * SPLIT_BATCH as u64);
    // Leaves of one table: 20 in the first, then 32 and 12 in the second.
    assert_eq!(flushes(cost_of_64(GIB - 20 * LARGE, &[0])), (4, 0, 0));
    assert_eq!(flushes(cost_of_64(GIB, &[1])), (0, 3, 3));
    assert_eq!(flushes(cost_of_64(GIB, &[])), (0, 0, 0));
}

/// Leaves that can be moved whole are not split, nor are those behind the range.
#[test]
fn no_leaf_is_split_that_can_move_whole() {
    with_space(config(24), |machine, allocator, context| {
        let all = range(GIB, 24 * LARGE);
        populate_leaves(machine, allocator, context, all);
        // A table without leaves blocks one of them.
        let aligned = VirtAddr(TO.0 - 4096);
        populate(machine, allocator, context, range(aligned.0 + 3 * LARGE, 4096), Order::FRAME);
        move_to(allocator, context, range(aligned.0 + 3 * LARGE, 4096), VirtAddr(5 * GIB)).unwrap();
        let split = counted(allocator, [Stat::ThpSplitPmd], || {
            move_to(allocator, context, range(GIB, 8 * LARGE), aligned).unwrap();
        });
        assert_eq!((split, check(allocator, context).leaves), ([1], 23 + 512 + 1));
        // Of the other 16, 6 and a half move: one at the end is split.
        let split = counted(allocator, [Stat::ThpSplitPmd], || {
            let part = range(GIB + 8 * LARGE, 6 * LARGE + MIB);
            move_to(allocator, context, part, VirtAddr(6 * GIB + 4096)).unwrap();
        });
        assert_eq!((split, check(allocator, context).leaves), ([7], 16 + 8 * 512 + 1));
    });
}

/// A gigantic leaf has a flush to itself, since it becomes as many leaves as a batch of large ones has
/// frames.
#[test]
fn a_gigantic_leaf_is_split_with_17_flushes() {
    let config = HostedConfig { tlb_model: false, clearing: false, ..HostedConfig::new(2 * GIB + 64 * MIB) };
    with_space(config, |machine, allocator, context| {
        let frame = folio(machine, allocator, Order::GIGANTIC).expect("no gigantic folio");
        let tables = page_tables(allocator, context);
        tables.map_large_raw(VirtAddr(4 * GIB), frame, PageSize::Size1G, written()).unwrap();
        running(machine, context, &[0], || {
            machine.reset_counters();
            move_to(allocator, context, range(4 * GIB, GIB), TO).unwrap();
            let counters = machine.counters();
            assert_eq!(counters.flushes_local, 1 + (TABLE_ENTRIES / SPLIT_BATCH) as u64 + 1);
            assert!(counters.reschedule_points >= 512, "{}", counters.reschedule_points);
        });
        let leaves = machine.leaves(context.root());
        let there = |at: usize| (TO.add(at as u64 * 4096), frame.add(at as u64));
        assert_eq!(leaves.len(), 1 << 18);
        assert!(leaves.iter().enumerate().all(|(at, leaf)| (leaf.addr, leaf.frame) == there(at)));
    });
}

/// Invariant 3: a store at every moment of the split of two clean leaves in turn, as far as the machine's
/// calls distinguish moments. It either faults, or is found at the new address, in a dirty page. The large
/// leaf is in no TLB when a small one can be read in its place.
#[test]
fn a_store_at_any_moment_of_a_split_is_found_or_faults() {
    with_space(config(8), |machine, allocator, context| {
        let clean = written().without(EntryFlags::DIRTY).without(EntryFlags::ACCESSED);
        let all = range(GIB, 2 * LARGE);
        let (mut n, mut stored) = (0, 0);
        running(machine, context, &[0], || {
            loop {
                for at in 0..2 {
                    let frame = folio(machine, allocator, BLOCK).unwrap();
                    let addr = all.start.add(at * LARGE);
                    page_tables(allocator, context)
                        .map_large_raw(addr, frame, PageSize::Size2M, clean)
                        .unwrap();
                }
                let place = |base: VirtAddr| base.add(LARGE + 77 * 4096);
                let mut done = 0;
                machine.read(place(all.start), &mut [0]).unwrap();
                let store = || {
                    let hits = machine.counters().tlb_hits;
                    let cached = machine.read(place(all.start), &mut [0]).is_ok()
                        && machine.counters().tlb_hits > hits;
                    let small = machine.probe(context.root(), place(all.start));
                    assert!(!cached || small.is_none_or(|leaf| leaf.frames > 1), "two sizes at call {n}");
                    done += u64::from(machine.fetch_add(place(all.start), 1).is_ok());
                };
                let ran =
                    machine.interrupt_at_calls(InterruptPlan::Nth(n), Context::HardInterrupt, store, || {
                        move_to(allocator, context, all, TO)
                    });
                assert_eq!(ran.result, Ok(()));
                let leaf = machine.probe(context.root(), place(TO)).unwrap();
                assert!(leaf.dirty || done == 0, "the store at call {n} was forgotten");
                let mut word = [0; 8];
                machine.read(place(TO), &mut word).unwrap();
                assert_eq!(u64::from_le_bytes(word), done, "call {n}");
                unmap_all(allocator, context, range(TO.0, all.len()));
                unmap_all(allocator, context, all);
                if ran.delivered == 0 {
                    break;
                }
                n += 1;
                stored += done;
            }
        });
        assert!(0 < stored && stored < n, "{stored} of {n} stores were made");
    });
}

/// Invariant 3: another CPU stores through clean large leaves all the while. Its stores are there afterwards,
/// marked dirty, and it never stores through the old address again.
#[test]
fn stores_while_leaves_are_split_are_not_lost() {
    const LEAVES: u64 = 40;
    let config = HostedConfig { clearing: false, ..config(LEAVES) };
    for round in 0..8 {
        with_space(config.clone(), |machine, allocator, context| {
            let all = range(GIB, LEAVES * LARGE);
            let clean = written().without(EntryFlags::DIRTY).without(EntryFlags::ACCESSED);
            for at in 0..LEAVES {
                let frame = folio(machine, allocator, BLOCK).unwrap();
                let addr = VirtAddr(GIB + at * LARGE);
                page_tables(allocator, context).map_large_raw(addr, frame, PageSize::Size2M, clean).unwrap();
            }
            let (started, moved) = (AtomicBool::new(false), AtomicBool::new(false));
            let place =
                |base: u64, leaf: u64| VirtAddr(base + leaf * LARGE + (leaf * 7 + round) % 512 * 4096);
            let stores = machine.spawn_cpus(2, |cpu| {
                let mut stores = [0; LEAVES as usize];
                if cpu.0 == 0 {
                    while !started.load(Ordering::Acquire) {
                        std::thread::yield_now();
                    }
                    move_to(allocator, context, all, TO).unwrap();
                    moved.store(true, Ordering::Release);
                    return stores;
                }
                context.switch_in(machine);
                started.store(true, Ordering::Release);
                // Beside the move, so that a leaf's first store comes as it is unmapped.
                for at in (0..LEAVES).cycle().take_while(|_| !moved.load(Ordering::Acquire)) {
                    stores[at as usize] += u64::from(machine.fetch_add(place(GIB, at), 1).is_ok());
                }
                assert!((0..LEAVES).all(|at| machine.fetch_add(place(GIB, at), 1).is_err()));
                context.switch_out(machine);
                stores
            });
            let leaves = machine.leaves(context.root());
            running(machine, context, &[0], || {
                for (at, &stores) in (0..).zip(&stores[1]) {
                    let (addr, mut word) = (place(TO.0, at), [0; 8]);
                    machine.read(addr, &mut word).unwrap();
                    assert_eq!(u64::from_le_bytes(word), stores, "leaf {at}");
                    let leaf = leaves.iter().find(|leaf| leaf.addr == addr).unwrap();
                    assert!(leaf.dirty || stores == 0, "leaf {at}: {stores} stores were forgotten");
                }
            });
        });
    }
}

/// Invariant 6: memory runs out at every allocation in turn, for one or for good. Then every page is where it
/// was; leaves may have been split, and moved parts were moved back without memory.
#[test]
fn memory_may_run_out_at_every_allocation_of_a_batch() {
    const LEAVES: u64 = SPLIT_BATCH as u64 + 8;
    for plan in [FailurePlan::Nth, FailurePlan::From] {
        let (mut n, mut partly) = (0, 0);
        loop {
            let mut asked = false;
            let config = HostedConfig { clearing: false, ..config(LEAVES) };
            with_space(config, |machine, allocator, context| {
                let all = range(GIB, LEAVES * LARGE);
                populate_leaves(machine, allocator, context, all);
                running(machine, context, &[0, 1], || {
                    let before = pages(machine, context);
                    machine.set_failures(plan(n));
                    let outcome = move_to(allocator, context, all, TO).map_err(|error| {
                        let back = range(TO.0, error.moved);
                        move_to(allocator, context, back, all.start).expect("moving back failed");
                        error.error
                    });
                    asked = machine.allocations_failed() > 0;
                    machine.set_failures(FailurePlan::Off);
                    if asked {
                        assert_eq!(outcome, Err(MapError::OutOfMemory));
                        assert!(pages(machine, context) == before, "a failed move changed what is mapped");
                    } else {
                        assert_eq!(outcome, Ok(()));
                    }
                    let leaves = check(allocator, context).leaves;
                    partly += u64::from(asked && leaves > LEAVES && leaves < LEAVES * 512);
                });
            });
            if !asked {
                break;
            }
            n += 1;
        }
        // A table for each leaf, a frame for the counts of eight, a table for each at the target, and some
        // above.
        assert!(n >= 2 * LEAVES + LEAVES / 8, "{n} allocations");
        assert!(partly > 0, "no failure came when some leaves had been split");
    }
}
