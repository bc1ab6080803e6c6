//! What the comparison of cached translations with the page tables finds, and what it leaves alone: what a verb may still flush,
//! and what faults take care of.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::tables::*;
use hosted::{Hosted, HostedConfig, InterruptPlan, OnViolation, Violation};
use quire::addr::Frame;
use quire::cpu::CpuId;
use quire::platform::{Context, FlushRequest, FramePlatform};
use quire::rank::Rank;
use quire::sync::Pinned;

const MIB: u64 = 1 << 20;
const ADDR: u64 = 0x4000_0000;
const CPU1: CpuId = CpuId(1);

fn recording() -> Hosted {
    machine(HostedConfig { on_violation: OnViolation::Record, ..HostedConfig::new(8 * MIB).with_cpus(2) })
}

fn stale(cpu: CpuId, write: bool, there: Option<u64>) -> Violation {
    let (first, there) = (Frame(300), there.map(Frame));
    Violation::StaleTranslation { cpu, root: ROOT, addr: ADDR, size: 4096, first, write, there }
}

/// A page that both CPUs have stored to; the entry that maps it.
fn stored_to(machine: &Hosted) -> &std::sync::atomic::AtomicU64 {
    let leaf = map(machine, 4, ADDR, 1, 300 << 12 | ALL);
    for cpu in [CPU1, CPU0] {
        machine.run_on(cpu, || {
            load(machine, Some(ROOT));
            write(machine, ADDR, 1).unwrap();
        });
    }
    leaf
}

#[test]
fn an_access_that_the_page_table_no_longer_grants_is_reported() {
    for (entry, there) in [(0, None), (301 << 12 | ALL, Some(301)), (300 << 12 | PRESENT | USER, Some(300))] {
        let machine = recording();
        let leaf = stored_to(&machine);
        machine.assert_clean();
        machine.run_on(CPU0, || {
            leaf.store(entry, Ordering::Relaxed);
            read(&machine, ADDR).unwrap();
            assert_eq!(machine.take_violations(), [stale(CPU0, true, there)]);
            machine.run_on(CPU1, || read(&machine, ADDR).unwrap());
            assert_eq!(machine.take_violations(), [stale(CPU1, true, there)], "each CPU has its own");
            flush_here(&machine, &range_flush(ADDR, 4096, 4096));
            flush_there(&machine, CPU1, &range_flush(ADDR, 4096, 4096));
        });
        machine.assert_clean();
    }
}

#[test]
fn what_is_forgotten_is_found_when_the_last_cpu_leaves() {
    let machine = recording();
    let leaf = stored_to(&machine);
    machine.run_on(CPU0, || leaf.store(0, Ordering::Relaxed));
    let mut found = machine.take_violations();
    found.sort_by_key(|violation| format!("{violation:?}"));
    assert_eq!(found, [stale(CPU0, true, None), stale(CPU1, true, None)]);
    machine.run_on(CPU0, || flush_here(&machine, &whole_flush()));
    assert_eq!(machine.take_violations(), [stale(CPU1, true, None)]);
    // Both CPUs stay inside until the flush.
    let flushed = std::sync::Barrier::new(2);
    machine.spawn_cpus(2, |cpu| {
        if cpu == CPU0 {
            flush_there(&machine, CPU1, &whole_flush());
        }
        flushed.wait();
    });
    assert_eq!(machine.take_violations(), []);
}

#[test]
fn fewer_rights_than_granted_are_fine() {
    let machine = recording();
    let leaf = map(&machine, 4, ADDR, 1, 300 << 12 | PRESENT | USER);
    machine.run_on(CPU0, || {
        load(&machine, Some(ROOT));
        read(&machine, ADDR).unwrap();
        leaf.store(300 << 12 | ALL, Ordering::Relaxed);
        read(&machine, ADDR).unwrap();
        write(&machine, ADDR, 1).expect_err("spurious");
        write(&machine, ADDR, 1).unwrap();
        leaf.fetch_and(!ACCESSED, Ordering::Relaxed);
        read(&machine, ADDR).unwrap();
    });
    machine.assert_clean();
}

/// A verb that is under way may owe the flush still: on this thread, as seen by a handler on top of it, or on another one.
#[test]
fn a_flush_that_may_still_come_is_waited_for() {
    let machine = recording();
    let leaf = stored_to(&machine);
    machine.run_on(CPU0, || {
        leaf.store(0, Ordering::Relaxed);
        machine.lock_taken(Rank::AddressSpace);
        read(&machine, ADDR).unwrap();
        machine.lock_dropped(Rank::AddressSpace);
        {
            let _pinned = Pinned::new(&machine);
            read(&machine, ADDR).unwrap();
        }
        let look = || machine.run_on(CPU1, || read(&machine, ADDR).map(drop).unwrap());
        machine.interrupt_at_calls(InterruptPlan::Nth(0), Context::HardInterrupt, look, || {
            drop(Pinned::new(&machine));
        });
        machine.assert_clean();
        flush_here(&machine, &whole_flush());
        flush_there(&machine, CPU1, &whole_flush());
    });
    leaf.store(300 << 12 | ALL, Ordering::Relaxed);
    let turn = std::sync::Barrier::new(2);
    machine.spawn_cpus(2, |cpu| {
        write(&machine, ADDR, 2).unwrap();
        turn.wait();
        if cpu == CPU0 {
            leaf.store(0, Ordering::Relaxed);
        }
        turn.wait();
        write(&machine, ADDR, 3).unwrap();
        turn.wait();
        if cpu == CPU0 {
            flush_here(&machine, &whole_flush());
            flush_there(&machine, CPU1, &whole_flush());
        }
    });
    machine.assert_clean();
}

/// A leaf of 2 MiB stays good while smaller ones map the same frames with the same rights, and no longer.
#[test]
fn a_large_leaf_is_held_against_each_small_one() {
    let machine = recording();
    map(&machine, 4, ADDR, 2, 512 << 12 | ALL | LARGE | DIRTY);
    machine.run_on(CPU0, || {
        load(&machine, Some(ROOT));
        write(&machine, ADDR, 1).unwrap();
        let small = |page| entry(&machine, Frame(1000), page);
        (0..512).for_each(|page| small(page).store((512 + page) << 12 | ALL | DIRTY, Ordering::Relaxed));
        let upper = entry(&machine, Frame(ROOT.0 + 2), ADDR >> 21 & 511);
        upper.store(1000 << 12 | ALL, Ordering::Relaxed);
        machine.check_translations();
        read(&machine, ADDR + 77 * 4096).unwrap();
        machine.assert_clean();
        small(77).fetch_and(!WRITE, Ordering::Relaxed);
        machine.check_translations();
        let found = machine.take_violations();
        let [Violation::StaleTranslation { addr: ADDR, size, first: Frame(512), there, .. }] = found[..]
        else {
            panic!("{found:?}");
        };
        assert_eq!((size, there), (2 * MIB, Some(Frame(512 + 77))));
        read(&machine, ADDR + 76 * 4096).unwrap();
        machine.assert_clean();
        read(&machine, ADDR + 77 * 4096).unwrap();
        assert_eq!(machine.take_violations(), found);
        flush_here(&machine, &whole_flush());
    });
    machine.assert_clean();
}

/// A table that was taken out stays in the paging-structure caches unless the flush says that tables went.
#[test]
fn a_pointer_to_a_table_that_went_is_reported() {
    for tables in [false, true] {
        let machine = recording();
        map(&machine, 4, ADDR, 1, 300 << 12 | ALL);
        let upper = entry(&machine, Frame(ROOT.0 + 2), ADDR >> 21 & 511);
        let table = Frame(upper.load(Ordering::Relaxed) >> 12 & 0xff_ffff);
        machine.run_on(CPU0, || {
            load(&machine, Some(ROOT));
            read(&machine, ADDR).unwrap();
            upper.store(0, Ordering::Relaxed);
            flush_here(&machine, &FlushRequest { tables, ..range_flush(ADDR, 2 * MIB, 4096) });
        });
        let expected =
            Violation::StaleTable { cpu: CPU0, root: ROOT, addr: ADDR, level: 1, table, there: None };
        assert_eq!(machine.take_violations(), if tables { vec![] } else { vec![expected] });
    }
}

/// The message names what a search needs.
#[test]
fn the_report_names_cpu_address_and_frames() {
    let text = stale(CPU1, true, Some(7)).to_string();
    for part in ["CpuId(1)", "0x40000000", "+0x1000", "stores: true", "every verb has returned"] {
        assert!(text.contains(part), "{text}");
    }
}

/// A CPU that enters while another one leaves, or looks at what it was served, may be in the middle of a verb.
#[test]
fn a_cpu_that_enters_while_another_looks_owes_its_flush_still() {
    const PAGES: u64 = 64;
    let machine = recording();
    let leaves: Vec<_> = (0..PAGES)
        .map(|page| map(&machine, 4, ADDR + page * 4096, 1, (300 + page) << 12 | ALL | DIRTY))
        .collect();
    for cpu in [CPU0, CPU1] {
        machine.run_on(cpu, || load(&machine, Some(ROOT)));
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..4_000 {
                machine.run_on(CPU0, || {
                    for page in 0..PAGES {
                        let _ = read(&machine, ADDR + page * 4096);
                    }
                });
            }
            done.store(true, Ordering::Relaxed);
        });
        while !done.load(Ordering::Relaxed) {
            machine.run_on(CPU1, || {
                leaves.iter().for_each(|leaf| leaf.store(0, Ordering::Release));
                flush_here(&machine, &whole_flush());
                flush_there(&machine, CPU0, &whole_flush());
                for (page, leaf) in (0..).zip(&leaves) {
                    leaf.store((300 + page) << 12 | ALL | DIRTY, Ordering::Release);
                }
            });
        }
    });
    machine.assert_clean();
}
