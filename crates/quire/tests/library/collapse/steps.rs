//! The steps of a copy one by one, with stores at any moment between and in them: the new folio has every
//! store.

use fastrand::Rng;
use hosted::raw::RawMachine;
use hosted::raw::RawPages;
use hosted::raw::{RawTables, page_tables};
use hosted::{FailurePlan, Hosted, HostedConfig, InterruptPlan, OnViolation, Violation};
use quire::addr::{Frame, FrameRange, Order, PageSize, VirtAddr};
use quire::arch::{EntryFlags, Protection, ReadyCopy};
use quire::cpu::CpuId;
use quire::page_alloc::Gfp;
use quire::pgtable::{Copied, GrantWrite, Run, Survey, TableSurvey};
use quire::platform::Context;
use quire::stats::Stat;
use quire::tlb::{FlushBatch, MmContext, MmuGather};

use crate::collapse::machine::{
    Allocator, BLOCK, GIB, MIB, Tables, check, populate, range, running, small_machine, with_space, written,
};
use testkit::{order, seed};

const AT: VirtAddr = VirtAddr(GIB);
const PAGE: u64 = 4096;

/// Copies as the library does, but always with the same kernel.
fn bring(machine: &Hosted, to: Frame, run: &Run) {
    let target = to.add(run.index as u64);
    match run.from {
        Some(from) => machine.copy_raw(FrameRange::new(from, run.count as u64), target, ReadyCopy::PLAIN),
        None => machine.clear_raw(FrameRange::new(target, run.count as u64), quire::arch::ReadyClear::PLAIN),
    }
}

fn survey(tables: &Tables<'_, '_>, copied: &Copied) -> TableSurvey {
    match tables.survey(AT, copied) {
        Survey::Table(survey) => survey,
        other => panic!("{other:?}"),
    }
}

/// Stores a word to a page as CPU 1.
fn store(machine: &Hosted, page: u64, word: u64) -> bool {
    let at = VirtAddr(AT.0 + page * PAGE + 8 * (page % 512));
    machine.run_on(CpuId(1), || machine.write(at, &word.to_le_bytes()).is_ok())
}

fn load(machine: &Hosted, page: u64) -> u64 {
    let mut bytes = [0; 8];
    machine.read(VirtAddr(AT.0 + page * PAGE + 8 * (page % 512)), &mut bytes).expect("mapped");
    u64::from_le_bytes(bytes)
}

/// A new folio of 2 MiB with rubbish in it.
fn target(machine: &Hosted, allocator: &Allocator<'_>) -> Frame {
    let to = allocator.alloc_raw(Gfp::USER, Order::BLOCK).expect("memory");
    let frames = FrameRange::folio(to, Order::BLOCK);
    let rubbish = allocator.alloc_raw(Gfp::USER, Order::BLOCK).expect("memory");
    machine.copy_raw(FrameRange::folio(rubbish, Order::BLOCK), frames.start, ReadyCopy::PLAIN);
    allocator.free_raw(rubbish, Order::BLOCK).expect("ours");
    to
}

/// Runs a test in an address space that CPUs 0 and 1 run.
fn with_two(test: impl FnOnce(&Hosted, &Allocator<'_>, &MmContext)) {
    with_two_of(small_machine(), test);
}

fn with_two_of(config: HostedConfig, test: impl FnOnce(&Hosted, &Allocator<'_>, &MmContext)) {
    with_space(config, |machine, allocator, context| {
        running(machine, context, &[0, 1], || test(machine, allocator, context));
    });
}

/// Invariant 3: a store at any moment of a copy is found.
#[test]
fn a_store_at_any_moment_of_a_copy_is_in_the_folio() {
    let first = seed(11);
    for number in 0..60 {
        let mut rng = Rng::with_seed(first.wrapping_add(number));
        with_two(|machine, allocator, context| {
            populate(machine, allocator, context, range(AT.0, 2 * MIB), order(rng.u8(..6)));
            let tables = page_tables(allocator, context);
            let mut model = [0; 512];
            let often = rng.u64(1..200);
            let mut touch = |model: &mut [u64; 512]| {
                for _ in 0..rng.u64(..often) {
                    let (page, word) = (rng.u64(..512), rng.u64(..));
                    if store(machine, page, word) {
                        model[page as usize] = word;
                    }
                }
            };
            touch(&mut model);
            let (to, mut copied) = (target(machine, allocator), Copied::NOTHING);
            for _ in 0..1 + number % 3 {
                touch(&mut model);
                tables.begin_copies(AT, &mut copied);
                touch(&mut model);
                tables.bring_pages(AT, &mut copied, |run| {
                    touch(&mut model);
                    bring(machine, to, &run);
                    touch(&mut model);
                });
                touch(&mut model);
            }
            let missing = survey(&tables, &copied).missing as u64;
            let mut gather = MmuGather::new(allocator, context);
            let shown = tables.put_leaf_raw(AT, to, written(), &mut copied, &mut gather, |run| {
                // No CPU can reach the range now.
                let before = model;
                touch(&mut model);
                assert_eq!(model, before);
                bring(machine, to, &run);
            });
            gather.finish();
            assert_eq!(shown, Some(missing), "the pages stored to since, and no others");
            for page in 0..512 {
                assert_eq!(load(machine, page), model[page as usize], "seed {first}, {number}, page {page}");
            }
            assert_eq!(check(allocator, context).leaves, 1);
            assert_eq!((allocator.counts().mapcount(to), allocator.counts().mapcount(to.add(511))), (1, 1));
            crate::collapse::machine::unmap_all(allocator, context, range(AT.0, 2 * MIB));
        });
    }
}

/// Leaves are mapped and unmapped while others are copied.
#[test]
fn leaves_that_come_meanwhile_are_copied() {
    with_two(|machine, allocator, context| {
        let tables = page_tables(allocator, context);
        populate(machine, allocator, context, range(AT.0, MIB), Order::FRAME);
        (0..256).for_each(|page| assert!(store(machine, page, page + 1)));
        let (to, mut copied) = (target(machine, allocator), Copied::NOTHING);
        assert_eq!(survey(&tables, &copied).missing, 512);
        tables.begin_copies(AT, &mut copied);
        assert_eq!(tables.bring_pages(AT, &mut copied, |run| bring(machine, to, &run)), 512);
        assert_eq!(survey(&tables, &copied).missing, 0);
        // A clean read-only leaf replaces a hole.
        let frame = crate::collapse::machine::folio(machine, allocator, Order::FRAME).expect("memory");
        let flags = written().without(EntryFlags::WRITE | EntryFlags::DIRTY);
        machine.copy_raw(FrameRange::new(to.add(7), 1), frame, ReadyCopy::PLAIN);
        tables.map_raw(AT.add(300 * PAGE), FrameRange::new(frame, 1), flags).expect("a hole");
        // The zero frame does not count as a change.
        tables
            .map_special_raw(AT.add(301 * PAGE), frame, EntryFlags::leaf(quire::arch::Protection::READ))
            .expect("a hole");
        assert_eq!(survey(&tables, &copied).missing, 1);
        let mut gather = MmuGather::new(allocator, context);
        let shown = tables.put_leaf_raw(AT, to, written(), &mut copied, &mut gather, |run| {
            assert_eq!((run.index, run.count, run.from), (300, 1, Some(frame)));
            bring(machine, to, &run);
        });
        let change = gather.finish();
        assert_eq!((shown, change.anon), (Some(1), -257));
        (0..256).for_each(|page| assert_eq!(load(machine, page), page + 1));
        (256..512).filter(|&page| page != 300).for_each(|page| assert_eq!(load(machine, page), 0));
        let mut bytes = [0; 8];
        machine.read(VirtAddr(AT.0 + 300 * PAGE + 56), &mut bytes).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), 8, "the word of page 7");
        crate::collapse::machine::unmap_all(allocator, context, range(AT.0, 2 * MIB));
    });
}

/// The flush that takes the dirty bits is needed: if it is lost, a CPU with a cached dirty translation stores
/// unseen.
#[test]
fn a_lost_flush_loses_a_store() {
    let config = HostedConfig { on_violation: OnViolation::Record, ..small_machine() };
    for lost in [false, true] {
        with_two_of(config.clone(), |machine, allocator, context| {
            let tables = page_tables(allocator, context);
            populate(machine, allocator, context, range(AT.0, 2 * MIB), Order::FRAME);
            // CPU 1 has the page cached as dirty.
            assert!(store(machine, 5, 1));
            let (to, mut copied) = (target(machine, allocator), Copied::NOTHING);
            machine.lose_flushes(if lost { FailurePlan::From(0) } else { FailurePlan::Off });
            tables.begin_copies(AT, &mut copied);
            machine.lose_flushes(FailurePlan::Off);
            tables.bring_pages(AT, &mut copied, |run| bring(machine, to, &run));
            assert!(store(machine, 5, 2));
            let seen = machine.take_violations();
            assert!(matches!((lost, &seen[..]), (false, []) | (true, [Violation::UnrecordedStore { .. }])));
            let mut gather = MmuGather::new(allocator, context);
            tables.put_leaf_raw(AT, to, written(), &mut copied, &mut gather, |run| bring(machine, to, &run));
            gather.finish();
            assert_eq!(load(machine, 5), if lost { 1 } else { 2 });
            crate::collapse::machine::unmap_all(allocator, context, range(AT.0, 2 * MIB));
        });
    }
}

/// The final flush is needed: if it is lost, a CPU still reaches freed frames (invariant 2).
#[test]
fn a_lost_flush_of_the_table_is_noticed() {
    let config = HostedConfig { on_violation: OnViolation::Record, ..small_machine() };
    let machine = config.build().expect("the host refused a machine");
    machine.run_on(CpuId(0), || {
        let ranges = testkit::ranges_of(&machine);
        let allocator = hosted::raw::page_allocator(&machine, &ranges, Default::default()).unwrap();
        let context = Tables::create(&allocator, Default::default()).unwrap();
        running(&machine, &context, &[0, 1], || {
            let tables = page_tables(&allocator, &context);
            populate(&machine, &allocator, &context, range(AT.0, 2 * MIB), Order::FRAME);
            assert!(store(&machine, 5, 1));
            let (to, mut copied) = (target(&machine, &allocator), Copied::NOTHING);
            tables.begin_copies(AT, &mut copied);
            tables.bring_pages(AT, &mut copied, |run| bring(&machine, to, &run));
            assert!(store(&machine, 5, 1));
            machine.lose_flushes(FailurePlan::From(0));
            let mut gather = MmuGather::new(&allocator, &context);
            tables.put_leaf_raw(AT, to, written(), &mut copied, &mut gather, |run| bring(&machine, to, &run));
            gather.finish();
            machine.lose_flushes(FailurePlan::Off);
            assert!(!machine.violations().is_empty(), "a freed frame was still reached");
        });
    });
}

#[test]
fn what_stands_there_is_told_apart() {
    with_two(|machine, allocator, context| {
        let tables = page_tables(allocator, context);
        assert_eq!(tables.survey(AT, &Copied::NOTHING), Survey::Nothing(511 * GIB));
        let to = target(machine, allocator);
        tables.map_large_raw(AT, to, PageSize::Size2M, written()).unwrap();
        assert_eq!(tables.survey(AT, &Copied::NOTHING), Survey::Large);
        assert_eq!(tables.survey(AT.add(2 * MIB), &Copied::NOTHING), Survey::Nothing(2 * MIB));
        tables.split_at(AT.add(PAGE)).unwrap();
        let all = survey(&tables, &Copied::NOTHING);
        assert_eq!((all.present, all.in_order, all.shared, all.first), (512, true, 0, Some(to)));
        let [rounds] = crate::collapse::machine::counted(allocator, [Stat::ThpCollapseRounds], || {});
        assert_eq!((rounds, BLOCK), (0, Order::BLOCK));
        crate::collapse::machine::unmap_all(allocator, context, range(AT.0, 2 * MIB));
    });
}

/// Read-only pages may be mapped elsewhere, too. A survey checks 64 frames at a time: for 512 frames it takes
/// and drops the lock of a block 8 times.
#[test]
fn a_survey_asks_once_for_64_frames_whether_they_are_shared() {
    with_two(|machine, allocator, context| {
        let tables = page_tables(allocator, context);
        let all = range(AT.0, 2 * MIB);
        populate(machine, allocator, context, all, BLOCK);
        let mut owed = FlushBatch::new();
        tables.protect(all, Protection::READ, GrantWrite::Exclusive, &mut owed).unwrap();
        owed.flush(allocator, context);
        let looked = machine.interrupt_at_calls(
            InterruptPlan::Count,
            Context::HardInterrupt,
            || (),
            || survey(&tables, &Copied::NOTHING),
        );
        assert_eq!((looked.result.present, looked.result.shared), (512, 0));
        assert_eq!(looked.events, 2 * 8, "locks taken and dropped");
    });
}
