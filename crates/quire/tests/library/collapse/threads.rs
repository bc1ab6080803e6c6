//! Collapses while other CPUs load, store, fault, fork, unmap and truncate files: no store is lost.

use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;
use hosted::{FaultCause, Hosted, HostedConfig};
use quire::addr::VirtAddr;
use quire::cpu::CpuId;
use quire::error::FaultError;
use quire::stats::Stat;
use quire::vm::{Access, Advice, Collapser, FolioPolicy, OrderPolicy, Remap, Splitter};

use crate::collapse::support::{HUGE, PAGE};
use crate::collapse::world::{FORKS, MIB, Manager, Space, anonymous, load, store, with_forks};
use testkit::{Stress, order, seed};

const CPUS: usize = 4;
const BASE: u64 = 0x7000_0000;
const STRETCH: u64 = 8 * MIB;
/// Pages to which all CPUs add, in 4 MiB.
const SUMS: u64 = 64;
const SUMS_AT: u64 = 2 * BASE;
const APART: u64 = 2 * HUGE / SUMS;

/// Adds one to a word of the program's memory, as one locked instruction.
fn add(machine: &Hosted, mm: &Space<'_>, addr: u64) {
    while let Err(fault) = machine.fetch_add(VirtAddr(addr), 1) {
        assert!(matches!(fault.cause, FaultCause::NotPresent | FaultCause::Protection), "{fault:?}");
        // CPU 0 marks pages for a moment.
        if let Err(error) = mm.fault(VirtAddr(addr), Access::Write)
            && error != FaultError::Marked
        {
            let leaf = machine.probe(mm.root(), VirtAddr(addr));
            panic!("{error:?} at {addr:#x}, where {leaf:?} stands");
        }
    }
}

/// Collapses at random, by call and in the background, and splits underused folios.
fn collapse(manager: &Manager<'_>, mm: &Space<'_>, rng: &mut Rng, daemons: &mut (Collapser, Splitter)) {
    match rng.u32(..4) {
        0 => _ = mm.collapse(VirtAddr(SUMS_AT), 2 * HUGE).expect("it is mapped"),
        1 => _ = mm.collapse(VirtAddr(BASE), CPUS as u64 * STRETCH),
        2 => _ = manager.collapse_ahead(&mut daemons.0),
        _ => _ = manager.split_underused(&mut daemons.1, 4),
    }
}

fn work(machine: &Hosted, mm: &Space<'_>, cpu: CpuId, rng: &mut Rng) {
    let own = BASE + u64::from(cpu.0) * STRETCH;
    let (at, pages, mark) = (own + rng.u64(..256) * PAGE, rng.u64(1..1200), rng.u64(..) << 12);
    mm.mmap(&anonymous(at, pages * PAGE)).expect("memory");
    let stored = |page: u64| page % 5 != mark % 7;
    let fill = |page| store(machine, mm, at + page * PAGE, mark + page).expect("mapped");
    (0..pages).filter(|&page| stored(page)).for_each(fill);
    let check = |mm: &Space<'_>, at: u64| {
        for page in 0..pages {
            let expected = if stored(page) { mark + page } else { 0 };
            assert_eq!(load(machine, mm, at + page * PAGE), Ok(expected), "page {page}");
        }
    };
    check(mm, at);
    match rng.u32(..4) {
        0 => {
            let child = mm.fork().expect("memory");
            mm.switch_out();
            child.switch_in();
            _ = child.collapse(VirtAddr(at), pages * PAGE).expect("mapped");
            check(&child, at);
            child.switch_out();
            mm.switch_in();
            child.exit();
        }
        1 => {
            let to = VirtAddr(own + 2 * STRETCH * CPUS as u64 + rng.u64(..128) * PAGE);
            mm.mremap(VirtAddr(at), pages * PAGE, pages * PAGE, Remap::Fixed(to)).expect("memory");
            check(mm, to.0);
            mm.munmap(to, pages * PAGE).expect("mapped");
            return;
        }
        2 => mm.madvise(VirtAddr(at), pages * PAGE / 2 / PAGE * PAGE, Advice::DontNeed).expect("mapped"),
        _ => check(mm, at),
    }
    mm.munmap(VirtAddr(at), pages * PAGE).expect("mapped");
}

/// Invariants 2 and 3: each store of each CPU is there in the end, and no CPU reaches freed frames.
#[test]
fn nothing_that_is_stored_during_collapses_is_lost() {
    let first = seed(fastrand::u64(..));
    println!("QUIRE_SEED={first}");
    let config = HostedConfig::new(128 * MIB).with_cpus(CPUS);
    with_forks(config, FORKS[first as usize % 2], |machine, manager| {
        // Faults bring small folios; a collapse makes large ones, in mappings that did not refuse.
        let policy = FolioPolicy::FRAMES.with(order(4), OrderPolicy::Always);
        manager.set_folio_policy(policy);
        let mm = manager.new_mm().expect("memory");
        mm.mmap(&anonymous(SUMS_AT, 2 * HUGE)).expect("memory");
        let sums: Vec<AtomicU64> = (0..SUMS).map(|_| AtomicU64::new(0)).collect();
        machine.spawn_cpus(CPUS, |cpu| {
            mm.switch_in();
            let mut rng = Rng::with_seed(first.wrapping_add(u64::from(cpu.0)));
            let mut daemons = (Collapser::default(), Splitter::new(rng.usize(100..400)));
            let stress = Stress::begin();
            let enough =
                || manager.stat(Stat::ThpCollapseCopied) > 20 && manager.stat(Stat::ThpCollapseRecopied) > 0;
            while stress.goes_on(enough) {
                if cpu.0 == 0 {
                    manager.set_folio_policy(policy.with(order(9), OrderPolicy::Always));
                    collapse(manager, &mm, &mut rng, &mut daemons);
                    manager.set_folio_policy(policy);
                    // The leaf is split, so that there is something to collapse.
                    if rng.u32(..3) == 0 {
                        let at = SUMS_AT + rng.u64(1..1023) * PAGE;
                        mm.write_protect_marked(VirtAddr(at), PAGE).expect("memory");
                        mm.remove_write_protect_marks(VirtAddr(at), PAGE).expect("memory");
                    }
                    continue;
                }
                for _ in 0..300 {
                    let sum = rng.u64(..SUMS);
                    add(machine, &mm, SUMS_AT + sum * APART + sum % 500 * 8);
                    sums[sum as usize].fetch_add(1, Ordering::Relaxed);
                }
                work(machine, &mm, cpu, &mut rng);
            }
            mm.switch_out();
            manager.pages().lists().drain_local();
        });
        mm.switch_in();
        for sum in 0..SUMS {
            let expected = sums[sum as usize].load(Ordering::Relaxed);
            assert_eq!(load(machine, &mm, SUMS_AT + sum * APART + sum % 500 * 8), Ok(expected), "sum {sum}");
        }
        let stats = [
            Stat::ThpCollapseCopied,
            Stat::ThpCollapseShape,
            Stat::ThpCollapseRounds,
            Stat::ThpCollapseRecopied,
            Stat::ThpUnderusedSplitPage,
        ];
        stats.into_iter().for_each(|stat| println!("{} {}", stat.name(), manager.stat(stat)));
        assert!(manager.stat(Stat::ThpCollapseCopied) > 20);
        assert!(manager.stat(Stat::ThpCollapseRecopied) > 0);
        mm.switch_out();
        mm.validate().expect("broken address space");
        mm.exit();
    });
}
