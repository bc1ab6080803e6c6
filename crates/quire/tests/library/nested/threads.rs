//! Virtual CPUs run while verbs change everything under them: no copy leads to a frame that it no longer
//! maps, and no store passes that the page table no longer allows (invariant 12).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use hosted::{Hosted, HostedConfig, Nested, OnViolation, VirtualCpu, during};
use quire::addr::VirtAddr;
use quire::error::FaultError;
use quire::manager::Config;
use quire::platform::FileId;
use quire::vm::{
    Access, Advice, Backing, File, FolioPolicy, ForkStrategy, MapRequest, OrderPolicy, Remap, Sharing,
};

use crate::nested::scene::{BASE, PAGE};
use crate::nested::world::{MIB, Manager, R, RW, Space, anonymous, with_config};
use testkit::{load, order, seed};

/// Memory whose contents no verb changes, where each page counts the stores to it.
const KEPT: u64 = 8 * MIB;
/// Memory that is mapped and unmapped.
const LOOSE: u64 = 4 * MIB;
/// A file's pages, which count as well.
const FILE: u64 = MIB / 4;
const GUEST: u64 = KEPT + LOOSE + FILE;
const AWAY: u64 = BASE + 64 * MIB;

type Tally = BTreeMap<u64, u64>;

/// Tells the virtual CPUs to stop, also when the thread that runs the verbs panics.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Stores all over guest memory until told to stop. Returns how often each page was incremented.
fn run_guest(cpu: &VirtualCpu<'_, '_>, mm: &Space<'_>, seed: u64, stop: &AtomicBool) -> Tally {
    let mut rng = Rng::with_seed(seed);
    let mut tally = Tally::new();
    while !stop.load(Ordering::Relaxed) {
        let at = rng.u64(0..GUEST / PAGE) * PAGE;
        let done =
            if rng.u8(0..4) == 0 { cpu.load(mm, at).map(|_| 0) } else { cpu.fetch_add(mm, at, 1).map(|_| 1) };
        match done {
            Ok(added) if !(KEPT..KEPT + LOOSE).contains(&at) => *tally.entry(at).or_default() += added,
            Ok(_) | Err(FaultError::Protection | FaultError::NotMapped | FaultError::Marked) => {}
            Err(error) => panic!("{at:#x}: {error:?}"),
        }
    }
    tally
}

/// One verb on memory whose contents are kept.
fn change_kept(machine: &Hosted, manager: &Manager<'_>, mm: &Space<'_>, rng: &mut Rng) {
    let pages = KEPT / PAGE;
    let first = rng.u64(0..pages);
    let count = if rng.bool() { rng.u64(1..=pages - first) } else { 1 };
    let (at, len) = (VirtAddr(BASE + first * PAGE), count * PAGE);
    match rng.u8(0..8) {
        0 => during("mprotect", || {
            mm.mprotect(at, len, R).unwrap();
            mm.mprotect(at, len, RW).unwrap();
        }),
        1 => during("fork", || watch_child(machine, mm, rng)),
        2 => during("migrate", || {
            if let Some(leaf) = mm.translate(at, Access::Read) {
                // The folio may have moved or been split by now.
                let _moved = manager.migrate(leaf.frame);
            }
        }),
        3 => during("mremap", || {
            let there = VirtAddr(AWAY + if rng.bool() { 0 } else { PAGE });
            mm.mremap(at, len, len, Remap::Fixed(there)).unwrap();
            mm.mremap(there, len, len, Remap::Fixed(at)).unwrap();
        }),
        4 => during("soft-dirty", || mm.clear_soft_dirty(at, len).unwrap()),
        5 => during("marks", || {
            mm.write_protect_marked(at, len).unwrap();
            mm.remove_write_protect_marks(at, len).unwrap();
        }),
        6 => during("collapse", || {
            // A collapse by copy while virtual CPUs store: no store is lost, whether it is refused or not.
            let block = VirtAddr(at.0 & !(2 * MIB - 1));
            let _done = mm.collapse(block, 2 * MIB).expect("it is mapped");
        }),
        _ => during("split", || {
            let frame = mm.translate(at, Access::Read).map(|leaf| leaf.frame);
            frame.map(|frame| manager.split_folio(frame, order(0)));
        }),
    }
}

/// The child does not see stores of the parent after the fork.
fn watch_child(machine: &Hosted, mm: &Space<'_>, rng: &mut Rng) {
    let child = mm.fork().unwrap();
    mm.switch_out();
    child.switch_in();
    let pages: Vec<u64> = (0..32).map(|_| BASE + rng.u64(0..KEPT / PAGE) * PAGE).collect();
    let read = || pages.iter().map(|&at| load(machine, &child, at)).collect::<Vec<_>>();
    let first = read();
    std::thread::yield_now();
    assert_eq!(read(), first, "a store of the parent reached its child");
    child.switch_out();
    mm.switch_in();
    child.exit();
}

/// One verb that drops the contents of its memory.
fn change_loose(mm: &Space<'_>, rng: &mut Rng) {
    let pages = LOOSE / PAGE;
    let first = rng.u64(0..pages);
    let (at, len) = (VirtAddr(BASE + KEPT + first * PAGE), rng.u64(1..=pages - first) * PAGE);
    match rng.u8(0..4) {
        0 => during("munmap", || {
            mm.munmap(at, len).unwrap();
            mm.mmap(&anonymous(at.0, len)).unwrap();
        }),
        1 => during("mmap over", || {
            mm.mmap(&anonymous(at.0, len)).unwrap();
        }),
        2 => during("give up", || mm.madvise(at, len, Advice::DontNeed).unwrap()),
        _ => during("free lazily", || mm.madvise(at, len, Advice::Free).unwrap()),
    }
}

/// Verbs that take the address space's lock for reading.
fn change_file(manager: &Manager<'_>, file: &File<'_, Hosted>, rng: &mut Rng) {
    match rng.u8(0..3) {
        0 => during("sync", || file.sync().unwrap()),
        _ => during("reclaim", || {
            manager.reclaim();
        }),
    }
    std::thread::sleep(Duration::from_micros(rng.u64(0..500)));
}

fn run(fork: ForkStrategy, folios: FolioPolicy) {
    let seed = seed(7);
    println!("QUIRE_SEED={seed}, {fork:?}");
    let config = Config { fork, folios, ..Config::default() };
    // A violation must not panic in the middle of a verb: its locks would never be released.
    let machine = HostedConfig { on_violation: OnViolation::Record, ..HostedConfig::new(96 * MIB) };
    with_config(machine.with_cpus(4), config, |machine, manager| {
        machine.files().set_size(FileId(2), FILE);
        let file = manager.open(FileId(2)).unwrap();
        let mm = manager.new_mm().unwrap();
        let registered = mm.register_secondary();
        let nested = Nested::new(machine, &mm, VirtAddr(BASE), GUEST, 2);
        mm.mmap(&anonymous(BASE, KEPT + LOOSE)).unwrap();
        let backing = Backing::File { file: &file, page_offset: 0 };
        let at = BASE + KEPT + LOOSE;
        mm.mmap(&MapRequest { sharing: Sharing::Shared, backing, ..anonymous(at, FILE) }).unwrap();
        let before: Vec<u64> = (KEPT + LOOSE..GUEST)
            .step_by(PAGE as usize)
            .map(|at| nested.cpu(0).load(&mm, at).unwrap())
            .collect();
        let stop = AtomicBool::new(false);
        let until = Instant::now() + Duration::from_millis(if cfg!(miri) { 10 } else { 1200 });
        let tallies = machine.spawn_cpus(4, |cpu| {
            let mut rng = Rng::with_seed(seed + u64::from(cpu.0));
            match cpu.0 {
                0 => {
                    let _stop = StopAtEnd(&stop);
                    mm.switch_in();
                    while Instant::now() < until {
                        if rng.bool() {
                            change_kept(machine, manager, &mm, &mut rng);
                        } else {
                            change_loose(&mm, &mut rng);
                        }
                    }
                    mm.switch_out();
                    Tally::new()
                }
                1 => {
                    while !stop.load(Ordering::Relaxed) {
                        change_file(manager, &file, &mut rng);
                    }
                    Tally::new()
                }
                number => run_guest(&nested.cpu(number as usize - 2), &mm, seed ^ u64::from(number), &stop),
            }
        });
        machine.assert_clean();
        let cpu = nested.cpu(0);
        let mut stores = 0;
        for at in (0..KEPT).chain(KEPT + LOOSE..GUEST).step_by(PAGE as usize) {
            let counted: u64 = tallies.iter().filter_map(|tally| tally.get(&at)).sum();
            let first = if at < KEPT { 0 } else { before[((at - KEPT - LOOSE) / PAGE) as usize] };
            assert_eq!(cpu.load(&mm, at), Ok(first.wrapping_add(counted)), "stores to {at:#x} were lost");
            stores += counted;
        }
        let (copies, stats) = (nested.check(), nested.stats());
        println!("{stores} stores, {copies} copies, {stats:#?}");
        assert!(stores > 0 && stats.brackets.len() > 6 && stats.faults > 0);
        mm.validate().unwrap();
        drop(cpu);
        drop(nested);
        drop(registered);
        mm.exit();
    });
}

#[test]
fn guests_run_while_small_leaves_change() {
    run(ForkStrategy::Copy, FolioPolicy::only(order(0)));
}

#[test]
fn guests_run_while_tables_are_shared() {
    run(ForkStrategy::Share, FolioPolicy::only(order(2)));
}

#[test]
fn guests_run_while_large_leaves_change() {
    let folios = FolioPolicy::only(order(9)).with(order(4), OrderPolicy::Always).with_pmd_mapped(true);
    run(ForkStrategy::Share, folios);
}
