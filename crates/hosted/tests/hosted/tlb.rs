//! What modelled TLBs keep, what flushes take from them, and what the check of freed frames finds.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::tables::*;
use hosted::{FailurePlan, FaultCause, Hosted, HostedConfig, OnViolation, Violation};
use quire::addr::{Frame, FrameRange, VirtAddr};
use quire::cpu::{CpuId, CpuSet};
use quire::platform::{FlushRequest, FramePlatform, TablePlatform};
use quire::sync::Pinned;

const MIB: u64 = 1 << 20;
const ADDR: u64 = 0x4000_0000;
const CPU1: CpuId = CpuId(1);

fn recording(cpus: usize) -> Hosted {
    machine(HostedConfig { on_violation: OnViolation::Record, ..HostedConfig::new(8 * MIB).with_cpus(cpus) })
}

#[test]
fn a_stale_translation_is_used_until_it_is_flushed() {
    let machine = recording(1);
    let leaf = map(&machine, 4, ADDR, 1, 300 << 12 | ALL);
    machine.run_on(CPU0, || {
        load(&machine, Some(ROOT));
        write(&machine, ADDR, 1).unwrap();
        leaf.store(0, Ordering::Relaxed);
        write(&machine, ADDR, 2).unwrap();
        assert_eq!(read(&machine, ADDR), Ok(2));
        leaf.store(301 << 12 | ALL, Ordering::Relaxed);
        assert_eq!(read(&machine, ADDR), Ok(2), "still the old frame");
        flush_here(&machine, &range_flush(ADDR, 4096, 4096));
        assert_eq!(read(&machine, ADDR), Ok(0), "the new frame");
        leaf.store(0, Ordering::Relaxed);
        flush_here(&machine, &range_flush(ADDR, 4096, 4096));
        assert_eq!(read(&machine, ADDR).unwrap_err().cause, FaultCause::NotPresent);
    });
}

#[test]
fn a_withdrawn_right_is_kept_until_flushed_and_a_granted_one_comes_after_a_fault() {
    let machine = recording(1);
    let leaf = map(&machine, 4, ADDR, 1, 300 << 12 | ALL);
    machine.run_on(CPU0, || {
        load(&machine, Some(ROOT));
        write(&machine, ADDR, 1).unwrap();
        leaf.fetch_and(!WRITE, Ordering::Relaxed);
        write(&machine, ADDR, 2).expect("the cached entry still allows stores");
        flush_here(&machine, &range_flush(ADDR, 4096, 4096));
        read(&machine, ADDR).unwrap();
        leaf.fetch_or(WRITE, Ordering::Relaxed);
        let spurious = write(&machine, ADDR, 3).unwrap_err();
        assert!(spurious.protection() && spurious.write && !spurious.exec);
        write(&machine, ADDR, 3).expect("the fault dropped the cached entry");
    });
}

#[test]
fn a_range_flush_takes_large_leaves_that_it_touches() {
    let machine = recording(1);
    let large = map(&machine, 4, ADDR, 2, 512 << 12 | ALL | LARGE);
    machine.run_on(CPU0, || {
        load(&machine, Some(ROOT));
        for (start, len, stride, stale) in [
            (ADDR + (1 << 21), 4096, 4096, true),
            (ADDR - 4096, 4096, 4096, true),
            (ADDR + (5 << 12), 4096, 4096, false),
            (ADDR, 1 << 21, 1 << 21, false),
            (ADDR - (1 << 21), 1 << 22, 1 << 21, false),
        ] {
            large.store(512 << 12 | ALL | LARGE, Ordering::Relaxed);
            read(&machine, ADDR).unwrap();
            large.store(0, Ordering::Relaxed);
            flush_here(&machine, &range_flush(start, len, stride));
            assert_eq!(read(&machine, ADDR).is_ok(), stale, "flush {start:#x}+{len:#x} by {stride:#x}");
            flush_here(&machine, &whole_flush());
        }
    });
}

#[test]
fn a_stride_that_is_too_long_leaves_small_leaves_behind() {
    let machine = recording(1);
    for page in 0..2 {
        map(&machine, 4, ADDR + page * 4096, 1, (300 + page) << 12 | ALL);
    }
    machine.run_on(CPU0, || {
        load(&machine, Some(ROOT));
        (0..2).for_each(|page| assert_eq!(read(&machine, ADDR + page * 4096), Ok(0)));
        flush_here(&machine, &range_flush(ADDR, 1 << 21, 1 << 21));
        machine.frames_freed(FrameRange::new(Frame(300), 2));
    });
    let [Violation::FreedFrame { addr, first, size: 4096, .. }] = machine.violations()[..] else {
        panic!("{:?}", machine.violations());
    };
    assert_eq!((addr, first), (ADDR + 4096, Frame(301)));
}

/// The table of level 1 is taken out and its frame reused; only a flush that includes tables makes that safe.
/// Without this a table that is freed too early (invariant 4) would go unnoticed.
#[test]
fn a_freed_page_table_is_found_unless_paging_structures_were_flushed() {
    for (tables, clean) in [(false, false), (true, true)] {
        let machine = recording(1);
        map(&machine, 4, ADDR, 1, 300 << 12 | ALL);
        map(&machine, 4, ADDR + 4096, 1, 301 << 12 | ALL);
        let upper = entry(&machine, Frame(ROOT.0 + 2), ADDR >> 21 & 511);
        let table = upper.load(Ordering::Relaxed) >> 12 & 0xff_ffff;
        machine.run_on(CPU0, || {
            load(&machine, Some(ROOT));
            read(&machine, ADDR).unwrap();
            upper.store(0, Ordering::Relaxed);
            flush_here(&machine, &FlushRequest { tables, ..range_flush(ADDR, 1 << 21, 4096) });
            machine.frames_freed(one(300));
            machine.assert_clean();
            machine.frames_freed(one(table));
            let expected =
                Violation::FreedTable { cpu: CPU0, root: ROOT, addr: ADDR, level: 1, table: Frame(table) };
            assert_eq!(machine.take_violations(), if clean { vec![] } else { vec![expected] });
            // And what would follow: the walker goes through the table that is no longer there.
            assert_eq!(read(&machine, ADDR + 4096).is_ok(), !clean);
        });
    }
}

#[test]
fn a_fault_drops_the_pointers_that_led_to_it() {
    let machine = recording(1);
    map(&machine, 4, ADDR, 1, 300 << 12 | ALL);
    machine.run_on(CPU0, || {
        load(&machine, Some(ROOT));
        read(&machine, ADDR).unwrap();
        // A 2 MiB leaf takes the table's place; the address beside the cached one still goes through the old table,
        // faults there, and finds the new leaf when it is tried again.
        entry(&machine, Frame(ROOT.0 + 2), ADDR >> 21 & 511)
            .store(512 << 12 | ALL | LARGE, Ordering::Relaxed);
        read(&machine, ADDR + 4096).unwrap_err();
        read(&machine, ADDR + 4096).unwrap();
    });
}

#[test]
fn a_freed_frame_is_found_in_any_cpu_and_at_any_size() {
    let machine = recording(2);
    map(&machine, 4, ADDR, 1, 300 << 12 | ALL);
    map(&machine, 4, ADDR + (1 << 21), 2, 512 << 12 | ALL | LARGE);
    machine.run_on(CPU1, || {
        load(&machine, Some(ROOT));
        read(&machine, ADDR).unwrap();
        read(&machine, ADDR + (1 << 21)).unwrap();
    });
    machine.run_on(CPU0, || {
        machine.frames_freed(FrameRange::new(Frame(301), 211));
        machine.frames_freed(FrameRange::new(Frame(1024), 1024));
        machine.assert_clean();
        machine.frames_freed(FrameRange::new(Frame(299), 3));
        machine.frames_freed(one(1023));
        machine.frames_freed(one(ROOT.0));
        let seen = machine.take_violations();
        assert!(matches!(seen[0], Violation::FreedFrame { cpu: CPU1, addr: ADDR, first: Frame(300), .. }));
        assert!(matches!(
            seen[1],
            Violation::FreedFrame { cpu: CPU1, size: 0x20_0000, first: Frame(512), .. }
        ));
        assert_eq!(seen[2], Violation::FreedRoot { cpu: CPU1, root: ROOT });
        assert_eq!(seen.len(), 3);
        flush_there(&machine, CPU1, &range_flush(ADDR, 4096, 4096));
        machine.frames_freed(one(300));
        machine.assert_clean();
    });
    machine.run_on(CPU1, || load(&machine, None));
    machine.run_on(CPU0, || machine.frames_freed(FrameRange::new(Frame(0), 2048)));
    machine.assert_clean();
}

/// Unmaps two pages with one local and one remote flush; loses each flush in turn, and none.
#[test]
fn every_lost_flush_is_caught() {
    let run = |plan: FailurePlan| {
        let machine = recording(2);
        let leaves = [0, 1].map(|page| map(&machine, 4, ADDR + page * 4096, 1, (300 + page) << 12 | ALL));
        machine.lose_flushes(plan);
        for cpu in [CPU1, CPU0] {
            machine.run_on(cpu, || {
                load(&machine, Some(ROOT));
                (0..2).for_each(|page| assert_eq!(read(&machine, ADDR + page * 4096), Ok(0)));
            });
        }
        machine.run_on(CPU0, || {
            leaves.iter().for_each(|leaf| leaf.store(0, Ordering::Relaxed));
            flush_here(&machine, &range_flush(ADDR, 8192, 4096));
            flush_there(&machine, CPU1, &range_flush(ADDR, 8192, 4096));
            machine.frames_freed(FrameRange::new(Frame(300), 2));
        });
        let (asked, lost) = (machine.flushes_asked(), machine.flushes_lost());
        let freed = |violation: &&Violation| matches!(violation, Violation::FreedFrame { .. });
        let seen = machine.violations();
        // Each is found when the frame is freed, and again when the CPU leaves.
        (asked, lost, seen.iter().filter(freed).count(), seen.len())
    };
    assert_eq!(run(FailurePlan::Count), (2, 0, 0, 0));
    assert_eq!(run(FailurePlan::Nth(0)), (2, 1, 2, 4));
    assert_eq!(run(FailurePlan::Nth(1)), (2, 1, 2, 4));
    assert_eq!(run(FailurePlan::From(0)), (2, 2, 4, 8));
}

#[test]
fn a_remote_flush_is_over_only_when_it_was_waited_for() {
    let machine = recording(2);
    map(&machine, 4, ADDR, 1, 300 << 12 | ALL);
    machine.run_on(CPU1, || {
        load(&machine, Some(ROOT));
        read(&machine, ADDR).unwrap();
    });
    machine.run_on(CPU0, || {
        let _pinned = Pinned::new(&machine);
        let mut targets = CpuSet::EMPTY;
        targets.insert(CPU1);
        let request = range_flush(ADDR, 4096, 4096);
        machine.flush_remote_start(&targets, &request);
        machine.frames_freed(one(300));
        assert_eq!(machine.take_violations().len(), 1);
        machine.flush_remote_wait(&targets, &request);
        machine.frames_freed(one(300));
        machine.assert_clean();
    });
}

#[test]
fn violations_panic_where_the_machine_was_built_so() {
    let machine = machine(HostedConfig::new(4 * MIB));
    map(&machine, 4, ADDR, 1, 300 << 12 | ALL);
    machine.run_on(CPU0, || {
        load(&machine, Some(ROOT));
        read(&machine, ADDR).unwrap();
        assert!(catch_unwind(AssertUnwindSafe(|| machine.frames_freed(one(300)))).is_err());
        read(&machine, ADDR).expect("the machine goes on");
    });
    assert!(catch_unwind(AssertUnwindSafe(|| machine.assert_clean())).is_err());
    assert_eq!(machine.violation_count(), 1);
}

#[test]
fn two_machines_do_not_see_each_other() {
    let (one_machine, two_machine) = (recording(1), recording(1));
    map(&one_machine, 4, ADDR, 1, 300 << 12 | ALL);
    map(&two_machine, 4, ADDR, 1, 400 << 12 | ALL);
    one_machine.run_on(CPU0, || {
        two_machine.run_on(CPU0, || {
            load(&two_machine, Some(ROOT));
            write(&two_machine, ADDR, 2).unwrap();
        });
        load(&one_machine, Some(ROOT));
        assert_eq!(read(&one_machine, ADDR), Ok(0));
        write(&one_machine, ADDR, 1).unwrap();
        two_machine.run_on(CPU0, || {
            assert_eq!(read(&two_machine, ADDR), Ok(2));
            two_machine.frames_freed(one(300));
            two_machine.assert_clean();
        });
        one_machine.frames_freed(one(400));
    });
    one_machine.assert_clean();
}

/// One CPU unmaps, flushes and hands the frame on while another reads and writes through its TLB: no access may land
/// in a frame after its flush (H5). The reader checks by value, the machine by its record.
#[test]
fn after_a_remote_flush_no_access_through_the_old_translation_is_in_flight() {
    const ROUNDS: u64 = if cfg!(miri) { 20 } else { 2_000 };
    let machine = recording(2);
    let leaf = map(&machine, 4, ADDR, 1, 300 << 12 | ALL);
    let done = AtomicBool::new(false);
    machine.spawn_cpus(2, |cpu| {
        if cpu == CPU1 {
            load(&machine, Some(ROOT));
            while !done.load(Ordering::Acquire) {
                match machine.fetch_add(VirtAddr(ADDR), 1) {
                    Ok(_) => {}
                    Err(fault) => assert_eq!(fault.cause, FaultCause::NotPresent),
                }
                machine.relax();
            }
            load(&machine, None);
            return;
        }
        for round in 0..ROUNDS {
            let (old, new) = (300 + round % 2, 300 + (round + 1) % 2);
            let before = leaf.swap(0, Ordering::AcqRel);
            assert_eq!(before >> 12 & 0xfff, old);
            flush_there(&machine, CPU1, &range_flush(ADDR, 4096, 4096));
            machine.frames_freed(one(old));
            let word = entry(&machine, Frame(old), 0);
            let seen = word.swap(u64::MAX / 2, Ordering::AcqRel);
            machine.relax();
            assert_eq!(
                word.swap(0, Ordering::AcqRel),
                u64::MAX / 2,
                "a store after the flush; {seen} before"
            );
            leaf.store(new << 12 | ALL, Ordering::Release);
        }
        done.store(true, Ordering::Release);
    });
    machine.assert_clean();
}
