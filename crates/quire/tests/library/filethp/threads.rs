//! Collapses while other CPUs load, store, copy privately, unmap, move and truncate: no store is lost, and no
//! CPU reaches freed frames (invariants 2 and 3).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use hosted::{FaultCause, Hosted, HostedConfig, InterruptPlan};
use quire::addr::VirtAddr;
use quire::cpu::CpuId;
use quire::error::FaultError;
use quire::stats::Stat;
use quire::vm::{Access, Advice, Collapser, File, FolioPolicy, Remap};

use crate::filethp::support::{BASE, HUGE, PAGE, RX, TEXT, private, shared, word};
use crate::filethp::world::{MIB, Manager, RW, Space, store, with_manager};
use testkit::{Stress, held_up, seed};

const CPUS: usize = 4;
const SUMS_AT: u64 = 0x7000_0000;
const TEXT_AT: u64 = 2 * SUMS_AT;
const OWN_AT: u64 = 3 * SUMS_AT;
const FILE: u64 = 2 * HUGE;
/// Pages to which all CPUs add; pages behind them are cut off now and then.
const SUMS: u64 = 600;

fn add(machine: &Hosted, mm: &Space<'_>, addr: u64) {
    while let Err(fault) = machine.fetch_add(VirtAddr(addr), 1) {
        assert!(matches!(fault.cause, FaultCause::NotPresent | FaultCause::Protection), "{fault:?}");
        mm.fault(VirtAddr(addr), Access::Write).expect("it is there");
    }
}

/// A load, unless the page was cut off.
fn look(machine: &Hosted, mm: &Space<'_>, addr: u64) -> Result<u64, FaultError> {
    let mut bytes = [0; 8];
    while machine.read(VirtAddr(addr), &mut bytes).is_err() {
        mm.fault(VirtAddr(addr), Access::Read)?;
    }
    Ok(u64::from_le_bytes(bytes))
}

struct Scene<'a, 'm> {
    machine: &'a Hosted,
    manager: &'a Manager<'a>,
    sums: &'a File<'m, Hosted>,
    text: &'a File<'m, Hosted>,
    counts: &'a [AtomicU64],
}

/// Collapses, truncates, moves and reclaims.
fn disturb(scene: &Scene<'_, '_>, mm: &Space<'_>, rng: &mut Rng, collapser: &mut Collapser) {
    match rng.u32(..8) {
        0 | 1 => _ = mm.collapse(VirtAddr(SUMS_AT), FILE).expect("it is mapped"),
        2 => _ = mm.collapse(VirtAddr(TEXT_AT), FILE).expect("it is mapped"),
        3 => _ = scene.manager.collapse_ahead(collapser),
        4 => {
            scene.sums.truncate(rng.u64(SUMS..1024) * PAGE + 8).expect("no pager");
            scene.sums.truncate(FILE).expect("no pager");
        }
        5 | 6 => {
            let at = [SUMS_AT, TEXT_AT][rng.usize(..2)] + rng.u64(..1024) * PAGE;
            if let Some(leaf) = scene.machine.probe(mm.root(), VirtAddr(at)) {
                _ = scene.manager.migrate(leaf.frame);
            }
        }
        _ => _ = scene.manager.reclaim(),
    }
}

fn work(scene: &Scene<'_, '_>, mm: &Space<'_>, cpu: CpuId, rng: &mut Rng) {
    let machine = scene.machine;
    for _ in 0..300 {
        let sum = rng.u64(..SUMS);
        add(machine, mm, SUMS_AT + sum * PAGE + u64::from(cpu.0) * 8);
        scene.counts[sum as usize].fetch_add(1, Ordering::Relaxed);
        _ = look(machine, mm, SUMS_AT + rng.u64(..1024) * PAGE);
        let page = rng.u64(..1024);
        let bytes: [u8; 8] =
            core::array::from_fn(|at| hosted::SyntheticFiles::pristine_byte(TEXT, page * PAGE + at as u64));
        assert_eq!(look(machine, mm, TEXT_AT + page * PAGE), Ok(u64::from_le_bytes(bytes)), "page {page}");
    }
    // Pages are migrated while they are collapsed.
    let at = [SUMS_AT, TEXT_AT][rng.usize(..2)] + rng.u64(..1024) * PAGE;
    if let Some(leaf) = machine.probe(mm.root(), VirtAddr(at)) {
        _ = scene.manager.migrate(leaf.frame);
    }
    let own = OWN_AT + u64::from(cpu.0) * 16 * HUGE;
    match rng.u32(..4) {
        0 => {
            // A private mapping: the copy of one page keeps its contents.
            mm.mmap(&private(scene.text, own, FILE, RW)).expect("memory");
            let page = rng.u64(..1024);
            while machine.write(VirtAddr(own + page * PAGE), &7u64.to_le_bytes()).is_err() {
                mm.fault(VirtAddr(own + page * PAGE), Access::Write).expect("memory");
            }
            _ = mm.collapse(VirtAddr(own), FILE);
            assert_eq!(look(machine, mm, own + page * PAGE), Ok(7));
            mm.munmap(VirtAddr(own), FILE).expect("mapped");
        }
        1 => {
            mm.mmap(&shared(scene.sums, own, FILE)).expect("memory");
            (0..SUMS).step_by(64).for_each(|sum| {
                add(machine, mm, own + sum * PAGE + u64::from(cpu.0) * 8);
                scene.counts[sum as usize].fetch_add(1, Ordering::Relaxed);
            });
            let to = VirtAddr(own + 8 * HUGE + rng.u64(..2) * PAGE);
            mm.mremap(VirtAddr(own), FILE, FILE, Remap::Fixed(to)).expect("memory");
            _ = mm.collapse(VirtAddr(own), 16 * HUGE);
            mm.munmap(to, FILE).expect("mapped");
        }
        2 => {
            let child = mm.fork().expect("memory");
            mm.switch_out();
            child.switch_in();
            let sum = rng.u64(..SUMS);
            add(machine, &child, SUMS_AT + sum * PAGE + u64::from(cpu.0) * 8);
            scene.counts[sum as usize].fetch_add(1, Ordering::Relaxed);
            _ = look(machine, &child, TEXT_AT + rng.u64(..1024) * PAGE);
            child.switch_out();
            mm.switch_in();
            child.exit();
        }
        _ => {
            let at = SUMS_AT + rng.u64(..1000) * PAGE;
            mm.madvise(VirtAddr(at), rng.u64(1..20) * PAGE, Advice::DontNeed).expect("mapped");
        }
    }
}

#[test]
fn nothing_that_is_stored_during_collapses_is_lost() {
    let first = seed(fastrand::u64(..));
    println!("QUIRE_SEED={first}");
    with_manager(HostedConfig::new(128 * MIB).with_cpus(CPUS), |machine, manager| {
        manager.set_folio_policy(FolioPolicy::LINUX);
        machine.files().set_size(TEXT, FILE);
        let (sums, text) = (manager.shmem(FILE).unwrap(), manager.open(TEXT).unwrap());
        let mm = manager.new_mm().expect("memory");
        mm.mmap(&shared(&sums, SUMS_AT, FILE)).expect("memory");
        mm.mmap(&private(&text, TEXT_AT, FILE, RX)).expect("memory");
        for at in [SUMS_AT, TEXT_AT] {
            mm.madvise(VirtAddr(at), FILE, Advice::HugePage).expect("mapped");
        }
        let counts: Vec<AtomicU64> = (0..SUMS).map(|_| AtomicU64::new(0)).collect();
        let scene = Scene { machine, manager, sums: &sums, text: &text, counts: &counts };
        machine.spawn_cpus(CPUS, |cpu| {
            mm.switch_in();
            let mut rng = Rng::with_seed(first.wrapping_add(u64::from(cpu.0)));
            let mut collapser = Collapser::default();
            let stress = Stress::begin();
            while stress.goes_on(|| manager.stat(Stat::ThpCollapseFile) > 5) {
                if cpu.0 == 0 {
                    disturb(&scene, &mm, &mut rng, &mut collapser);
                } else {
                    work(&scene, &mm, cpu, &mut rng);
                }
            }
            mm.switch_out();
            manager.pages().lists().drain_local();
        });
        mm.switch_in();
        for sum in 0..SUMS {
            let words = (0..CPUS as u64).map(|cpu| look(machine, &mm, SUMS_AT + sum * PAGE + cpu * 8));
            let found: u64 = words.map(|word| word.expect("it is there")).sum();
            assert_eq!(found, counts[sum as usize].load(Ordering::Relaxed), "sum {sum}");
        }
        for stat in [Stat::ThpCollapseFile, Stat::ThpCollapseShape, Stat::ThpFileMapped, Stat::ThpSplitPmd] {
            println!("{} {}", stat.name(), manager.stat(stat));
        }
        assert!(manager.stat(Stat::ThpCollapseFile) > 5);
        mm.switch_out();
        mm.validate().expect("broken address space");
        mm.exit();
    });
}

/// A file is written back at every moment of a collapse: a store that came before the write-back is on the
/// backing store after it.
#[test]
fn what_is_moved_is_written_back() {
    const PATIENCE: Duration = Duration::from_millis(5);
    // So many of the last calls move pages.
    const MOVING: u64 = 400;
    // The first round counts the calls.
    let (mut round, mut waited, mut last) = (None, 0, 0);
    while round.is_none_or(|round| round <= last) {
        with_manager(HostedConfig::new(64 * MIB).with_cpus(2), |machine, manager| {
            manager.set_folio_policy(FolioPolicy::FRAMES);
            machine.files().set_size(TEXT, HUGE);
            let file = manager.open(TEXT).expect("memory");
            let [reader, writer] = [(); 2].map(|()| manager.new_mm().expect("memory"));
            reader.mmap(&private(&file, BASE, HUGE, RX)).unwrap();
            writer.mmap(&shared(&file, BASE, HUGE)).unwrap();
            writer.switch_in();
            for page in (0..512).step_by(40) {
                store(machine, &writer, BASE + page * PAGE, word(page)).unwrap();
            }
            writer.switch_out();
            let collapse = || _ = reader.collapse(VirtAddr(BASE), HUGE).expect("a mapping");
            let sync = || {
                file.sync().expect("written");
                file.dirty()
            };
            let plan = round.map_or(InterruptPlan::Count, InterruptPlan::Nth);
            let held = held_up(machine, plan, PATIENCE, collapse, sync);
            assert_eq!(held.second, 0, "call {round:?}: dirty pages are left, although none was stored to");
            waited += u64::from(!held.in_time);
            last = if round.is_none() { held.calls } else { last };
            [reader, writer].into_iter().for_each(Space::exit);
        });
        // Many of the last moments, in which pages move; a few of those before, which read them.
        let moving = last.saturating_sub(MOVING);
        let next = |round: u64| if round < moving { (round + last / 6).min(moving) } else { round + 13 };
        round = Some(round.map_or(0, next));
    }
    assert!(waited > 0, "no write-back had to wait");
    println!("{last} calls, late {waited} times");
}
