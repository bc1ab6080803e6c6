//! Many CPUs in the same address spaces at once. Each thread must read back its own stores; the machine
//! checks locks, translations and freed frames; at the end all memory is free.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use hosted::{Hosted, HostedConfig, InterruptPlan};
use quire::addr::{Order, VirtAddr};
use quire::cpu::CpuId;
use quire::error::{FaultError, MmError};
use quire::platform::FileId;
use quire::stats::Stat;
use quire::vm::{
    Advice, Backing, FaultKind, FolioPolicy, ForkStrategy, MapRequest, OrderPolicy, Placement, Remap, Sharing,
};

use crate::vm::world::{FORKS, MIB, Manager, RW, Space, anonymous, load, store, with_forks};
use testkit::{PATIENCE, Stress, held_up, order, seed, stress_time, within};

const CPUS: usize = 4;
/// Each thread has its own range of addresses, all of them in the same upper tables.
const STRETCH: u64 = 3 * MIB;
const BASE: u64 = 0x7000_0000;

fn parallel(
    config: HostedConfig,
    action: impl Fn(&Hosted, &Manager<'_>, &Space<'_>, CpuId, &mut Rng) + Sync,
) {
    let first = seed(fastrand::u64(..));
    println!("QUIRE_SEED={first}");
    with_forks(config.with_cpus(CPUS), FORKS[first as usize % 2], |machine, manager| {
        let mm = manager.new_mm().expect("memory");
        machine.spawn_cpus(CPUS, |cpu| {
            mm.switch_in();
            let mut rng = Rng::with_seed(first.wrapping_add(u64::from(cpu.0)));
            let end = Instant::now() + stress_time();
            while Instant::now() < end {
                action(machine, manager, &mm, cpu, &mut rng);
            }
            mm.switch_out();
            manager.pages().lists().drain_local();
        });
        mm.validate().expect("broken address space");
        mm.exit();
    });
}

fn policy(rng: &mut Rng) -> FolioPolicy {
    FolioPolicy::FRAMES
        .with(order(rng.u8(1..=9)), OrderPolicy::Always)
        .with(order(rng.u8(1..=9)), OrderPolicy::Always)
        .with_pmd_mapped(rng.bool())
}

/// Stores to pages of a range and loads them again; each word names its page and round.
fn fill(machine: &Hosted, mm: &Space<'_>, start: u64, pages: u64, mark: u64) {
    for page in 0..pages {
        store(machine, mm, start + page * 4096, mark + page).expect("mapped by this thread");
    }
}

fn check(machine: &Hosted, mm: &Space<'_>, start: u64, pages: u64, mark: u64) {
    for page in 0..pages {
        assert_eq!(load(machine, mm, start + page * 4096), Ok(mark + page), "page {page} of {start:#x}");
    }
}

#[test]
fn threads_map_store_move_and_unmap_side_by_side() {
    parallel(HostedConfig::new(256 * MIB), |machine, manager, mm, cpu, rng| {
        let own = BASE + u64::from(cpu.0) * STRETCH;
        manager.set_folio_policy(policy(rng));
        let (at, pages) = (own + rng.u64(..64) * 4096, rng.u64(1..200));
        let mark = rng.u64(..) << 12;
        mm.mmap(&anonymous(at, pages * 4096)).expect("memory");
        fill(machine, mm, at, pages, mark);
        match rng.u32(..5) {
            0 => mm.mprotect(VirtAddr(at), pages * 4096, quire::arch::Protection::READ).expect("mapped"),
            1 => mm.madvise(VirtAddr(at), 4096, Advice::HugePage).expect("mapped"),
            2 => {
                let to = VirtAddr(own + 2 * MIB + rng.u64(..16) * 4096);
                let moved = mm.mremap(VirtAddr(at), pages * 4096, pages * 4096, Remap::Fixed(to));
                assert_eq!(moved, Ok(to));
                check(machine, mm, to.0, pages, mark);
                mm.munmap(to, pages * 4096).expect("aligned");
                return;
            }
            3 => {
                let middle = at + pages / 2 * 4096;
                mm.munmap(VirtAddr(middle), 4096).expect("aligned");
                check(machine, mm, at, pages / 2, mark);
                assert_eq!(load(machine, mm, middle), Err(FaultError::NotMapped));
                return;
            }
            _ => {}
        }
        check(machine, mm, at, pages, mark);
        if rng.bool() {
            mm.munmap(VirtAddr(at), pages * 4096).expect("aligned");
        }
    });
}

#[test]
fn threads_fault_on_the_same_pages() {
    let size = 4 * MIB;
    parallel(HostedConfig::new(256 * MIB), |machine, manager, mm, cpu, rng| {
        if cpu.0 == 0 && rng.u32(..20) == 0 {
            manager.set_folio_policy(policy(rng));
            mm.mmap(&anonymous(BASE, size)).expect("memory");
        }
        for _ in 0..64 {
            let page = BASE + rng.u64(..size / 4096) * 4096;
            // A word for each CPU: stores of others to the page must not lose it, unless all was mapped anew.
            let word = page + 64 * u64::from(cpu.0);
            let mark = rng.u64(1..);
            match store(machine, mm, word, mark) {
                Ok(()) => {
                    let seen = load(machine, mm, word);
                    assert!(seen == Ok(mark) || seen == Ok(0), "{seen:?} at {word:#x}");
                }
                Err(error) => assert_eq!(error, FaultError::NotMapped, "before the first mapping"),
            }
        }
    });
}

#[test]
fn threads_fork_while_others_store() {
    let pages = 300;
    let ready = AtomicBool::new(false);
    parallel(HostedConfig::new(256 * MIB), |machine, manager, mm, cpu, rng| {
        let own = BASE + u64::from(cpu.0) * STRETCH;
        if cpu.0 == 0 {
            manager.set_folio_policy(policy(rng));
            let child = mm.fork().expect("memory");
            mm.switch_out();
            child.switch_in();
            for other in 1..CPUS as u64 {
                // All pages of a child are from one moment; each word names its own page.
                for page in (0..pages).step_by(7) {
                    let at = BASE + other * STRETCH + page * 4096;
                    match load(machine, &child, at) {
                        Ok(word) => assert!(word == 0 || word & 0xfff == page, "{word:#x} at {at:#x}"),
                        Err(error) => assert_eq!(error, FaultError::NotMapped),
                    }
                }
                let _stored = store(machine, &child, BASE + other * STRETCH, 0);
            }
            child.validate().expect("broken child");
            child.switch_out();
            drop(child);
            mm.switch_in();
            ready.store(true, Ordering::Relaxed);
            return;
        }
        let mark = rng.u64(..1 << 40) << 12;
        mm.mmap(&anonymous(own, pages * 4096)).expect("memory");
        for page in 0..pages {
            store(machine, mm, own + page * 4096, mark | page).expect("mapped by this thread");
        }
        for page in 0..pages {
            assert_eq!(load(machine, mm, own + page * 4096), Ok(mark | page));
        }
    });
    assert!(ready.load(Ordering::Relaxed));
}

/// Words of each page that belong to one thread of one generation.
const WORDS: u64 = 8;

/// Invariants 4 and 5: a family on threads of its own. Each member has pages of its parent, stores its own
/// words to them, unmaps and protects parts of them, and passes them on to a child, which another thread runs
/// at the same time. Up to four address spaces share tables at once, and each must see what it stored and
/// inherited, and nothing else.
#[test]
fn parents_and_children_store_side_by_side() {
    let first = seed(fastrand::u64(..));
    println!("QUIRE_SEED={first}");
    with_forks(HostedConfig::new(256 * MIB).with_cpus(CPUS), ForkStrategy::Share, |machine, manager| {
        let root = manager.new_mm().expect("memory");
        root.mmap(&anonymous(BASE, 4 * MIB)).expect("memory");
        root.switch_in();
        fill(machine, &root, BASE, 1024, 1 << 20);
        root.switch_out();
        let children = std::sync::Mutex::new(vec![root.fork().expect("memory")]);
        machine.spawn_cpus(CPUS, |cpu| {
            let mut rng = Rng::with_seed(first.wrapping_add(u64::from(cpu.0)));
            let stress = Stress::begin();
            while stress.goes_on(|| manager.stat(Stat::TableUnshare) > 100) {
                let Some(mm) = take(&children, &mut rng) else {
                    std::hint::spin_loop();
                    continue;
                };
                mm.switch_in();
                for _ in 0..4 {
                    live(machine, &mm, &mut rng);
                }
                let child = mm.fork().expect("memory");
                live(machine, &mm, &mut rng);
                mm.switch_out();
                let mut children = children.lock().expect("no panic");
                children.push(child);
                if children.len() < 2 * CPUS {
                    children.push(mm);
                }
            }
            manager.pages().lists().drain_local();
        });
        let left = children.into_inner().expect("no panic");
        left.iter().for_each(|mm| mm.validate().expect("broken address space"));
        assert!(manager.stat(Stat::TableUnshare) > 100, "tables were hardly shared");
        drop(left);
        root.switch_in();
        check(machine, &root, BASE, 1024, 1 << 20);
        root.switch_out();
        root.exit();
    });
}

fn take<'m>(children: &std::sync::Mutex<Vec<Space<'m>>>, rng: &mut Rng) -> Option<Space<'m>> {
    let mut children = children.lock().expect("no panic");
    let at = rng.usize(..children.len().max(1));
    (at < children.len()).then(|| children.swap_remove(at))
}

/// One member's work between two forks. Word 0 of each page names the page for ever; the others are stored to
/// and loaded again.
fn live(machine: &Hosted, mm: &Space<'_>, rng: &mut Rng) {
    let page = rng.u64(..1024);
    let at = BASE + page * 4096;
    for page in [page, rng.u64(..1024)] {
        let seen = load(machine, mm, BASE + page * 4096);
        assert!(seen == Ok((1 << 20) + page) || seen == Ok(0), "{seen:?} in page {page}");
    }
    let (word, mark) = (at + 8 * rng.u64(1..WORDS), rng.u64(1..));
    store(machine, mm, word, mark).expect("mapped");
    assert_eq!(load(machine, mm, word), Ok(mark));
    let (start, len) = (VirtAddr(BASE + page / 32 * 32 * 4096), 32 * 4096);
    match rng.u32(..16) {
        0 => mm.madvise(start, len, Advice::DontNeed).expect("mapped"),
        1 => mm.madvise(start, len, Advice::Free).expect("mapped"),
        2 => mm.mprotect(start, len, quire::arch::Protection::READ).expect("mapped"),
        3 => mm.mprotect(VirtAddr(BASE), 4 * MIB, RW).expect("mapped"),
        _ => {}
    }
    if mm.fault(VirtAddr(at), quire::vm::Access::Write).is_err() {
        mm.mprotect(VirtAddr(BASE), 4 * MIB, RW).expect("mapped");
    }
}

/// Invariant F2.
#[test]
fn threads_share_a_file_and_reclaim_its_pages() {
    let config = HostedConfig::new(32 * MIB);
    parallel(config, |machine, manager, mm, cpu, rng| {
        let id = FileId(rng.u64(1..4));
        machine.files().set_size(id, 2 * MIB);
        let own = BASE + u64::from(cpu.0) * STRETCH;
        let file = manager.open(id).expect("memory");
        let shared = rng.bool();
        let request = MapRequest {
            sharing: if shared { Sharing::Shared } else { Sharing::Private },
            backing: Backing::File { file: &file, page_offset: 0 },
            prot: RW,
            placement: Placement::Fixed,
            addr: VirtAddr(own),
            len: 2 * MIB,
            ..MapRequest::default()
        };
        drop_on_memory(mm.mmap(&request).map(|_| ()));
        for _ in 0..100 {
            let page = rng.u64(..512);
            let at = own + page * 4096 + 8 + 64 * u64::from(cpu.0);
            if rng.bool() {
                let mark = rng.u64(..);
                if store(machine, mm, at, mark).is_ok() {
                    assert_eq!(load(machine, mm, at), Ok(mark));
                }
            } else {
                let seen = load(machine, mm, own + page * 4096 + 4000);
                let mut bytes = [0; 8];
                (0..8).for_each(|byte| {
                    bytes[byte as usize] =
                        hosted::SyntheticFiles::pristine_byte(id, page * 4096 + 4000 + byte);
                });
                assert!(
                    matches!(seen, Err(FaultError::OutOfMemory)) || seen == Ok(u64::from_le_bytes(bytes))
                );
            }
        }
        if rng.bool() {
            manager.reclaim();
        }
        drop(file);
        drop_on_memory(mm.munmap(VirtAddr(own), 2 * MIB));
    });
}

fn drop_on_memory(result: Result<(), MmError>) {
    assert!(matches!(result, Ok(()) | Err(MmError::NoMemory)), "{result:?}");
}

#[test]
fn single_frames_and_blocks_both_survive_a_crowd() {
    parallel(HostedConfig::new(256 * MIB), |machine, manager, mm, cpu, rng| {
        manager.set_folio_policy(FolioPolicy::only(if rng.bool() { Order::BLOCK } else { Order::FRAME }));
        // All threads work in the same two 2 MiB extents, a quarter each.
        let own = BASE + u64::from(cpu.0) * MIB;
        mm.mmap(&anonymous(own, MIB)).expect("memory");
        let mark = rng.u64(..) << 12;
        let from = rng.u64(..200);
        fill(machine, mm, own + from * 4096, 40, mark);
        mm.madvise(VirtAddr(own + (from + 10) * 4096), 4096, Advice::DontNeed).expect("mapped");
        check(machine, mm, own + from * 4096, 10, mark);
        assert_eq!(load(machine, mm, own + (from + 10) * 4096), Ok(0));
        mm.munmap(VirtAddr(own), MIB).expect("aligned");
    });
}

/// A protocol test of what faults and verbs may do at once: overlapping ranges of one address space are touched,
/// dropped, freed lazily, protected, unmapped and collapsed by all CPUs.
#[test]
fn threads_drop_pages_that_others_fault() {
    let pages = 1024;
    parallel(HostedConfig::new(256 * MIB), |machine, manager, mm, cpu, rng| {
        if cpu.0 == 0 && rng.u32(..50) == 0 {
            manager.set_folio_policy(policy(rng));
        }
        if rng.u32(..30) == 0 {
            mm.mmap(&anonymous(BASE, pages * 4096)).expect("memory");
        }
        let page = rng.u64(..pages);
        let at = VirtAddr(BASE + page * 4096);
        let most = rng.u64(1..=pages);
        let len = rng.u64(1..=most).min(pages - page) * 4096;
        let done = match rng.u32(..24) {
            0..6 => mm.madvise(at, len, Advice::DontNeed),
            6..9 => mm.madvise(at, len, Advice::Free),
            9 => mm.mprotect(at, len, quire::arch::Protection::READ),
            10..13 => mm.mprotect(VirtAddr(BASE), pages * 4096, RW),
            13 => mm.munmap(at, len),
            14 => mm.madvise(at.align_down(2 * MIB), 2 * MIB, Advice::Collapse).or(Ok(())),
            _ => Ok(()),
        };
        assert!(matches!(done, Ok(()) | Err(MmError::NoMemory)), "{done:?}");
        for _ in 0..16 {
            // A word for each CPU, which no other stores to: the page loses it only with all others.
            let word = BASE + rng.u64(..pages) * 4096 + 64 * u64::from(cpu.0);
            let mark = rng.u64(1..);
            match store(machine, mm, word, mark) {
                Ok(()) => {
                    let seen = load(machine, mm, word);
                    let gone = matches!(seen, Ok(0) | Err(FaultError::NotMapped));
                    assert!(gone || seen == Ok(mark), "{seen:?} at {word:#x}");
                }
                Err(error) => {
                    assert!(matches!(error, FaultError::NotMapped | FaultError::Protection), "{error:?}");
                }
            }
        }
    });
}

/// Pages that fill no table are dropped, and freed lazily, while a reader of the address space is held up at
/// most moments of its work.
#[test]
fn few_pages_are_dropped_beside_faults() {
    for advice in [Advice::DontNeed, Advice::Free] {
        let scene = |plan: InterruptPlan| {
            let mut held = None;
            with_forks(HostedConfig::new(64 * MIB).with_cpus(2), FORKS[0], |machine, manager| {
                let mm = manager.new_mm().expect("memory");
                mm.mmap(&anonymous(BASE, 8 * MIB)).expect("memory");
                let dropped = VirtAddr(BASE + 4 * MIB);
                mm.madvise(dropped, 64 * 4096, Advice::PopulateWrite).expect("memory");
                let touch = || mm.madvise(VirtAddr(BASE), 24 * 4096, Advice::PopulateWrite);
                let drop = || mm.madvise(dropped, 40 * 4096, advice);
                let ran = held_up(machine, plan, PATIENCE, touch, drop);
                assert_eq!((ran.first, ran.second), (Ok(()), Ok(())));
                held = Some((ran.calls, ran.in_time));
                assert_eq!(mm.rss().anon, 24 + if advice == Advice::Free { 64 } else { 24 });
                mm.exit();
            });
            held.expect("it ran")
        };
        mostly_waits_for_none(scene, &format!("{advice:?}"));
    }
}

/// The same of 2 MiB and more: large leaves, tables, and a hole. Pages that were never touched stay none.
#[test]
fn many_pages_are_dropped_beside_faults() {
    let scene = |plan: InterruptPlan| {
        let mut held = None;
        with_forks(HostedConfig::new(64 * MIB).with_cpus(2), FORKS[0], |machine, manager| {
            let mm = manager.new_mm().expect("memory");
            mm.mmap(&anonymous(BASE, 16 * MIB)).expect("memory");
            let populate =
                |at: u64, pages: u64| mm.madvise(VirtAddr(at), pages * 4096, Advice::PopulateWrite);
            populate(BASE + 4 * MIB, 600).expect("memory");
            manager.set_folio_policy(FolioPolicy::only(Order::BLOCK));
            populate(BASE + 10 * MIB, 600).expect("memory");
            manager.set_folio_policy(FolioPolicy::FRAMES);
            let touch = || populate(BASE, 24);
            // Its ends lie in a table and in a large leaf.
            let drop = || mm.madvise(VirtAddr(BASE + 5 * MIB), 6 * MIB + 4096, Advice::DontNeed);
            let ran = held_up(machine, plan, PATIENCE, touch, drop);
            assert_eq!((ran.first, ran.second), (Ok(()), Ok(())));
            held = Some((ran.calls, ran.in_time));
            assert_eq!(mm.rss().anon, 24 + 256 + 1024 - 257);
            mm.switch_in();
            assert_eq!(store(machine, &mm, BASE + 10 * MIB, 1), Ok(()));
            assert_eq!(load(machine, &mm, BASE + 11 * MIB + 4096), Ok(0));
            mm.switch_out();
            mm.validate().expect("broken address space");
            mm.exit();
        });
        held.expect("it ran")
    };
    mostly_waits_for_none(scene, "many pages");
}

/// Holds up one of two calls at some forty moments: at more than a third of them the other one ends meanwhile. Where
/// the first holds the lock of a block, it is waited for.
fn mostly_waits_for_none(scene: impl Fn(InterruptPlan) -> (u64, bool), what: &str) {
    let (calls, _) = scene(InterruptPlan::Count);
    let moments: Vec<u64> = (0..calls).step_by((calls / 40).max(1) as usize).collect();
    let in_time = moments.iter().filter(|&&moment| scene(InterruptPlan::Nth(moment)).1).count();
    assert!(in_time > moments.len() / 3, "{what}: at {in_time} of {} moments", moments.len());
}

/// No lock of the address space is held while the pager reads: mappings change meanwhile.
#[test]
fn mappings_change_while_a_page_is_read() {
    for populate in [false, true] {
        with_forks(HostedConfig::new(64 * MIB).with_cpus(2), FORKS[0], |machine, manager| {
            let id = FileId(5);
            machine.files().set_size(id, MIB);
            let (reading, changed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
            let (begun, done) = (Arc::clone(&reading), Arc::clone(&changed));
            let waited = Arc::new(AtomicBool::new(false));
            let late = Arc::clone(&waited);
            machine.files().set_slow_reads(move || {
                begun.store(true, Ordering::SeqCst);
                let came = within(Duration::from_secs(5), || done.load(Ordering::SeqCst));
                late.fetch_or(!came, Ordering::SeqCst);
            });
            let file = manager.open(id).expect("memory");
            let mm = manager.new_mm().expect("memory");
            let backing = Backing::File { file: &file, page_offset: 0 };
            mm.mmap(&MapRequest { backing, ..anonymous(BASE, MIB) }).expect("memory");
            let (counted, major) = (manager.stat(Stat::Pgmajfault), AtomicBool::new(false));
            machine.spawn_cpus(2, |cpu| {
                mm.switch_in();
                if cpu.0 == 0 {
                    if populate {
                        assert_eq!(mm.madvise(VirtAddr(BASE), 4096, Advice::WillNeed), Ok(()));
                    }
                    let outcome = mm.fault(VirtAddr(BASE + 8), quire::vm::Access::Read).expect("mapped");
                    major.store(outcome.kind == FaultKind::FileMajor, Ordering::SeqCst);
                } else {
                    assert!(within(Duration::from_secs(5), || reading.load(Ordering::SeqCst)));
                    mm.mmap(&anonymous(BASE + 2 * MIB, MIB)).expect("memory");
                    mm.munmap(VirtAddr(BASE + 2 * MIB), MIB).expect("mapped");
                    changed.store(true, Ordering::SeqCst);
                }
                mm.switch_out();
                manager.pages().lists().drain_local();
            });
            assert!(!waited.load(Ordering::SeqCst), "the verb waited for the pager");
            assert_eq!(major.load(Ordering::SeqCst), !populate);
            assert_eq!(manager.stat(Stat::Pgmajfault) - counted, u64::from(!populate));
            mm.exit();
            machine.files().set_slow_reads(|| ());
        });
    }
}
