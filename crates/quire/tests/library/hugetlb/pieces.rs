//! Private pages of 1 GiB that are mapped piece by piece as they are cleared. Any verb but a fault finds a page
//! that is mapped by one leaf, or not at all.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hosted::raw::IsolatedMemory;
use hosted::{FailurePlan, Hosted, HostedConfig};
use quire::addr::{Order, VirtAddr};
use quire::cpu::CpuId;
use quire::error::FaultError;
use quire::hugetlb::HugeSize::Size1G;
use quire::hugetlb::PoolInfo;
use quire::manager::{Config, MemoryManager};
use quire::page_alloc::{AllocatorConfig, MemoryRange, NodeSet, Zeroes};
use quire::platform::Platform;
use quire::vm::Sharing::Private;
use quire::vm::{Access, Advice, FaultKind, MapRequest, Mm, Remap, UserfaultChanges, UserfaultModes};

use crate::hugetlb::world::{
    BASE, HUGE, Manager, R, RW, Space, clear_ahead_until, info, load, of_file, private, run, store, within,
};
use crate::watched::{Event, Watched};
use testkit::{ranges_of, seed, stress_time};

pub(super) const GIB: u64 = 1 << 30;
pub(super) const ALL_FREE: fn(u64) -> PoolInfo =
    |pages| PoolInfo { total: pages, free: pages, ..PoolInfo::default() };

fn request(pages: u64) -> MapRequest<'static> {
    MapRequest { len: pages * GIB, huge: Some(Size1G), ..private(BASE, 1) }
}

/// A machine with a pool of so many pages, none known to be zero; all are back at the end.
pub(super) fn with_pages<P: Platform + IsolatedMemory>(
    platform: &P,
    machine: &Hosted,
    pages: u64,
    test: impl FnOnce(&MemoryManager<'_, P>),
) {
    machine.run_on(CpuId(0), || {
        let zeroes = Zeroes { verify: false, ..Zeroes::default() };
        let allocator = AllocatorConfig { zeroes, ..AllocatorConfig::default() };
        let config = Config { allocator, ..Config::default() };
        let ranges: Vec<_> =
            ranges_of(machine).into_iter().map(|range| MemoryRange { zeroed: false, ..range }).collect();
        let manager = hosted::raw::memory_manager(platform, &ranges, &config).unwrap();
        let pools = manager.huge_pools();
        assert_eq!(pools.resize(manager.pages(), Size1G, NodeSet::ALL, pages).after, pages);
        test(&manager);
        let left = pools.info(manager.pages(), Size1G);
        assert_eq!((left.free, left.reserved, left.surplus), (left.total, 0, 0), "all pages are back");
        pools.validate(manager.pages()).unwrap();
        manager.validate().unwrap();
    });
}

pub(super) fn with_machine(pages: u64, cpus: u16, test: impl FnOnce(&Hosted, &Manager<'_>)) {
    let machine = HostedConfig::new((pages + 2) * GIB).with_cpus(cpus.into()).build().expect("memory");
    with_pages(&machine, &machine, pages, |manager| test(&machine, manager));
    machine.assert_clean();
}

pub(super) fn leaf_bytes(machine: &Hosted, mm: &Space<'_>, addr: u64) -> Option<u64> {
    machine.probe(mm.root(), VirtAddr(addr)).map(|leaf| leaf.frames * 4096)
}

pub(super) fn idle(manager: &Manager<'_>) -> usize {
    std::iter::from_fn(|| manager.clear_ahead().then_some(())).count()
}

#[test]
fn the_touched_piece_comes_first_and_one_leaf_in_the_end() {
    with_machine(1, 1, |machine, manager| {
        run(manager, |mm| {
            mm.mmap(&request(1)).unwrap();
            let before = machine.counters().bytes_cleared;
            let outcome = mm.fault(VirtAddr(BASE + 701 * HUGE / 2 + 4096), Access::Write).unwrap();
            assert_eq!((outcome.order, outcome.kind), (Order::BLOCK, FaultKind::Anon));
            assert_eq!(mm.rss().huge, 512);
            store(machine, mm, BASE + 350 * HUGE, 7).unwrap();
            assert_eq!(load(machine, mm, BASE + 5 * HUGE), Ok(0));
            assert_eq!(leaf_bytes(machine, mm, BASE + 5 * HUGE), Some(HUGE));
            assert_eq!(leaf_bytes(machine, mm, BASE + 6 * HUGE), None);
            assert_eq!((info(manager, Size1G).free, info(manager, Size1G).reserved), (0, 0));
            mm.validate().unwrap();
            assert_eq!(idle(manager), 510);
            for (at, word) in [(0, 0), (350 * HUGE, 7), (GIB - 8, 0)] {
                assert_eq!(leaf_bytes(machine, mm, BASE + at), Some(GIB));
                assert_eq!(load(machine, mm, BASE + at), Ok(word));
            }
            assert_eq!(mm.rss().huge, GIB / 4096);
            let tables = 16 * 4096;
            assert!(
                (GIB..GIB + tables).contains(&(machine.counters().bytes_cleared - before)),
                "each byte once"
            );
        });
        assert_eq!(info(manager, Size1G), ALL_FREE(1));
    });
}

/// Populating ends with one leaf, too, and takes the pieces that are there.
#[test]
fn populating_completes_a_page() {
    with_machine(1, 1, |machine, manager| {
        run(manager, |mm| {
            mm.mmap(&request(1)).unwrap();
            store(machine, mm, BASE + 9 * HUGE, 7).unwrap();
            mm.mlock(VirtAddr(BASE), GIB, false).unwrap();
            assert_eq!(leaf_bytes(machine, mm, BASE), Some(GIB));
            assert_eq!(load(machine, mm, BASE + 9 * HUGE), Ok(7));
        });
    });
}

type Verb = (&'static str, fn(&Hosted, &Manager<'_>, &Space<'_>));

/// Verbs that need the page complete it: what was stored stays, and one leaf maps it afterwards.
const COMPLETING: [Verb; 6] = [
    ("fork", |machine, _, mm| {
        let child = mm.fork().unwrap();
        mm.switch_out();
        within(&child, || assert_eq!(load(machine, &child, BASE + 77 * HUGE), Ok(5)));
        child.exit();
        mm.switch_in();
    }),
    ("mprotect", |machine, _, mm| {
        mm.mprotect(VirtAddr(BASE), GIB, R).unwrap();
        assert!(store(machine, mm, BASE + 3 * HUGE, 1).is_err());
        mm.mprotect(VirtAddr(BASE), GIB, RW).unwrap();
    }),
    ("mremap", |machine, _, mm| {
        let to = VirtAddr(BASE + 8 * GIB);
        mm.mremap(VirtAddr(BASE), GIB, GIB, Remap::Fixed(to)).unwrap();
        assert_eq!(load(machine, mm, to.0 + 77 * HUGE), Ok(5));
        mm.mremap(to, GIB, GIB, Remap::Fixed(VirtAddr(BASE))).unwrap();
    }),
    ("register", |_, manager, mm| {
        let handler = manager.userfault(UserfaultChanges::NONE).unwrap();
        mm.userfault_register(&handler, VirtAddr(BASE), GIB, UserfaultModes::MISSING).unwrap();
        mm.userfault_unregister(VirtAddr(BASE), GIB).unwrap();
    }),
    ("mark", |_, _, mm| {
        mm.write_protect_marked(VirtAddr(BASE), GIB).unwrap();
        mm.remove_write_protect_marks(VirtAddr(BASE), GIB).unwrap();
    }),
    ("migrate", |_, manager, mm| {
        let frame = mm.translate(VirtAddr(BASE + 77 * HUGE), Access::Read).unwrap().frame;
        assert_eq!(manager.migrate(frame), Ok(512 * 512));
        assert_ne!(mm.translate(VirtAddr(BASE + 77 * HUGE), Access::Read).unwrap().frame, frame);
    }),
];

#[test]
fn verbs_complete_a_page_that_they_need() {
    for (name, verb) in COMPLETING {
        with_machine(2, 1, |machine, manager| {
            run(manager, |mm| {
                mm.mmap(&request(1)).unwrap();
                store(machine, mm, BASE + 77 * HUGE, 5).unwrap();
                verb(machine, manager, mm);
                assert_eq!(leaf_bytes(machine, mm, BASE + 511 * HUGE), Some(GIB), "{name}");
                assert_eq!(load(machine, mm, BASE + 77 * HUGE), Ok(5), "{name}");
                assert_eq!(load(machine, mm, BASE + 78 * HUGE), Ok(0), "{name}");
                assert_eq!(mm.rss().huge, GIB / 4096, "{name}");
                assert_eq!(idle(manager), 0, "{name}");
                store(machine, mm, BASE, 6).unwrap();
            });
        });
    }
}

/// A verb's name, how many pages are reserved after it, and the verb.
type Cancelling = (&'static str, u64, fn(&Space<'_>));

/// Verbs that give the memory up cancel the page: it is in its pool again, and its reservation holds if the
/// mapping stays.
#[test]
fn verbs_cancel_a_page_that_they_unmap() {
    let verbs: [Cancelling; 4] = [
        ("munmap", 0, |mm| mm.munmap(VirtAddr(BASE), GIB).unwrap()),
        ("dontneed", 1, |mm| mm.madvise(VirtAddr(BASE), GIB, Advice::DontNeed).unwrap()),
        ("map over", 0, |mm| {
            let over = MapRequest { len: GIB, huge: None, ..private(BASE, 1) };
            assert_eq!(mm.mmap(&over), Ok(VirtAddr(BASE)));
        }),
        ("move over", 0, |mm| {
            let small = MapRequest { huge: None, ..private(BASE + 8 * GIB, 512) };
            let from = mm.mmap(&small).unwrap();
            mm.mremap(from, GIB, GIB, Remap::Fixed(VirtAddr(BASE))).unwrap();
        }),
    ];
    for (name, reserved, verb) in verbs {
        with_machine(1, 1, |machine, manager| {
            run(manager, |mm| {
                mm.mmap(&request(1)).unwrap();
                store(machine, mm, BASE + 77 * HUGE, 5).unwrap();
                assert!(manager.clear_ahead());
                verb(mm);
                assert_eq!(info(manager, Size1G), PoolInfo { reserved, ..ALL_FREE(1) }, "{name}");
                assert_eq!((mm.rss().huge, idle(manager)), (0, 0), "{name}");
                assert_eq!(
                    load(machine, mm, BASE + 77 * HUGE).ok(),
                    (name != "munmap").then_some(0),
                    "{name}"
                );
            });
        });
    }
}

/// Truncation takes private pages, too.
#[test]
fn a_file_that_shrinks_cancels_private_pages() {
    for punches in [false, true] {
        with_machine(2, 1, |machine, manager| {
            let file = manager.huge_file(Size1G, GIB).unwrap();
            run(manager, |mm| {
                mm.mmap(&of_file(&file, Private, BASE, (0, 512))).unwrap();
                store(machine, mm, BASE + 77 * HUGE, 5).unwrap();
                if punches {
                    file.punch_hole(0..GIB).unwrap();
                    assert_eq!(load(machine, mm, BASE + 77 * HUGE), Ok(0));
                } else {
                    file.truncate(0).unwrap();
                    assert_eq!(load(machine, mm, BASE + 77 * HUGE), Err(FaultError::BeyondEnd));
                    file.truncate(GIB).unwrap();
                }
                store(machine, mm, BASE + 78 * HUGE, 6).unwrap();
                assert_eq!(load(machine, mm, BASE + 77 * HUGE), Ok(0));
            });
            drop(file);
        });
    }
}

#[test]
fn a_frame_that_goes_bad_costs_the_page() {
    with_machine(2, 1, |machine, manager| {
        run(manager, |mm| {
            mm.mmap(&request(1)).unwrap();
            store(machine, mm, BASE + 77 * HUGE, 5).unwrap();
            let frame = mm.translate(VirtAddr(BASE + 77 * HUGE), Access::Read).unwrap().frame;
            manager.memory_failure(frame).unwrap();
            assert_eq!(mm.fault(VirtAddr(BASE + 77 * HUGE), Access::Read), Err(FaultError::Poisoned));
            assert_eq!(mm.fault(VirtAddr(BASE), Access::Read), Err(FaultError::Poisoned));
        });
        assert_eq!(info(manager, Size1G).total, 1);
    });
}

/// A killed task leaves nothing half mapped. What it cleared is not cleared again, by whichever task.
#[test]
fn a_task_that_dies_leaves_no_piece_behind() {
    let machine = HostedConfig::new(2 * GIB).build().unwrap();
    let watched = Watched::new(&machine);
    with_pages(&watched, &machine, 1, |manager| {
        let mm = manager.new_mm().unwrap();
        mm.mmap(&request(1)).unwrap();
        watched.events();
        for lives in 0..3 {
            watched.dies_after(Some(lives));
            assert_eq!(mm.fault(VirtAddr(BASE), Access::Write), Err(FaultError::Dying));
            watched.dies_after(Some(lives));
            assert!(!manager.clear_ahead());
            assert_eq!(mm.rss().huge, 0);
            mm.validate().unwrap();
        }
        watched.dies_after(None);
        mm.fault(VirtAddr(BASE + 7 * HUGE), Access::Write).unwrap();
        assert_eq!(mm.rss().huge, 512);
        // A child of a task that dies still gets all of the page.
        watched.dies_after(Some(0));
        let child = mm.fork().unwrap();
        assert_eq!(mm.rss().huge, GIB / 4096);
        watched.dies_after(None);
        child.exit();
        let frames = |event: Event| if let Event::Clear(frames, _) = event { frames.count } else { 0 };
        let cleared: u64 = watched.events().into_iter().map(frames).filter(|&frames| frames > 1).sum();
        assert!(
            cleared < GIB / 4096 + 6 * 512,
            "only pieces that were given up are cleared again: {cleared}"
        );
        mm.exit();
    });
}

/// While a piece is cleared, other tasks of the address space map and unmap. So they do where populating needs
/// a page that the pool must allocate.
#[test]
fn a_piece_is_cleared_without_the_lock_of_its_address_space() {
    for surplus in [false, true] {
        let machine = HostedConfig::new(2 * GIB).with_cpus(2).build().unwrap();
        let watched = Watched::new(&machine);
        let [begun, mapped, timely] = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
        with_pages(&watched, &machine, u64::from(!surplus), |manager| {
            manager.huge_pools().set_overcommit(manager.pages(), Size1G, 1);
            let mm = manager.new_mm().unwrap();
            mm.mmap(&MapRequest { noreserve: surplus, ..request(1) }).unwrap();
            let (begins, waits_for, answers) = (Arc::clone(&begun), Arc::clone(&mapped), Arc::clone(&timely));
            let end = Instant::now() + Duration::from_secs(20);
            watched.before_clear(move || {
                begins.store(true, Ordering::SeqCst);
                while !waits_for.load(Ordering::SeqCst) && Instant::now() < end {
                    std::thread::yield_now();
                }
                answers.store(waits_for.load(Ordering::SeqCst), Ordering::SeqCst);
            });
            machine.spawn_cpus(2, |cpu| match (cpu.0, surplus) {
                (0, false) => _ = mm.fault(VirtAddr(BASE + 9 * HUGE), Access::Write).unwrap(),
                (0, true) => mm.mlock(VirtAddr(BASE), GIB, false).unwrap(),
                _ => {
                    while !begun.load(Ordering::SeqCst) && Instant::now() < end {
                        std::thread::yield_now();
                    }
                    let small = MapRequest { len: 4096, huge: None, ..private(BASE + GIB, 1) };
                    mm.munmap(mm.mmap(&small).unwrap(), 4096).unwrap();
                    mapped.store(true, Ordering::SeqCst);
                }
            });
            assert!(timely.load(Ordering::SeqCst), "the lock was held");
            assert_eq!(mm.rss().huge, if surplus { GIB / 4096 } else { 512 });
            mm.exit();
        });
    }
}

/// Every allocation may fail: the page is then in its pool, or goes on being cleared.
#[test]
fn memory_may_be_short_at_any_step() {
    with_machine(1, 1, |machine, manager| {
        let mut nth = 0;
        loop {
            let mm = manager.new_mm().unwrap();
            mm.mmap(&request(1)).unwrap();
            let attempt = || -> bool {
                machine.set_failures(FailurePlan::Nth(nth));
                let touched = mm.fault(VirtAddr(BASE + 3 * HUGE), Access::Write).is_ok();
                let child = mm.fork();
                machine.set_failures(FailurePlan::Off);
                touched && child.map(Mm::exit).is_ok()
            };
            let whole = attempt();
            mm.validate().unwrap();
            mm.fault(VirtAddr(BASE + 3 * HUGE), Access::Write).unwrap();
            mm.exit();
            assert_eq!(info(manager, Size1G), ALL_FREE(1), "{nth}");
            if whole && nth > 20 {
                break;
            }
            nth += 1;
        }
    });
}

/// Random verbs on three places, compared word by word with a model through the software MMU.
#[test]
fn random_verbs_in_lockstep() {
    let mut rng = fastrand::Rng::with_seed(seed(fastrand::u64(..)));
    println!("seed {}", rng.get_seed());
    with_machine(6, 1, |machine, manager| {
        let end = Instant::now() + stress_time();
        while Instant::now() < end {
            let mut spaces = vec![(manager.new_mm().unwrap(), BTreeMap::<u64, u64>::new())];
            spaces[0].0.mmap(&request(2)).unwrap();
            for step in 0..60 {
                let (count, at) = (spaces.len(), rng.usize(..spaces.len()));
                let (mm, words) = &mut spaces[at];
                let page = BASE + rng.u64(..2) * GIB;
                let addr = page + rng.u64(..512) * HUGE + rng.u64(..2) * 8;
                match rng.u32(..14) {
                    0..=5 => within(mm, || match store(machine, mm, addr, step) {
                        Ok(()) => _ = words.insert(addr, step),
                        // A child's copy needs a page that the pool may lack.
                        Err(error) => assert_eq!(error, FaultError::NoHugePage),
                    }),
                    6..=8 => within(mm, || match load(machine, mm, addr) {
                        Ok(word) => assert_eq!(word, words.get(&addr).copied().unwrap_or(0)),
                        Err(error) => assert_eq!(error, FaultError::NoHugePage),
                    }),
                    9 => _ = (0..rng.u32(..200)).take_while(|_| manager.clear_ahead()).count(),
                    10 => {
                        if mm.madvise(VirtAddr(page), GIB, Advice::DontNeed).is_ok() {
                            words.retain(|addr, _| !(page..page + GIB).contains(addr));
                        }
                    }
                    11 => {
                        mm.mprotect(VirtAddr(page), GIB, R).unwrap();
                        mm.mprotect(VirtAddr(page), GIB, RW).unwrap();
                    }
                    12 if count < 2 => {
                        let child = (spaces[at].0.fork().unwrap(), spaces[at].1.clone());
                        spaces.push(child);
                    }
                    13 if count > 1 => spaces.remove(1).0.exit(),
                    _ => {
                        if let Some(found) = mm.translate(VirtAddr(addr), Access::Read) {
                            let _moved = manager.migrate(found.frame);
                        }
                    }
                }
            }
            for (mm, words) in spaces {
                within(&mm, || {
                    words.iter().for_each(|(&at, &word)| assert_eq!(load(machine, &mm, at), Ok(word)))
                });
                mm.exit();
            }
            assert_eq!(info(manager, Size1G), ALL_FREE(6));
        }
    });
}

/// CPUs store, clear ahead, fork and drop the memory at once.
#[test]
fn pieces_are_cleared_beside_verbs_on_other_cpus() {
    with_machine(4, 4, |machine, manager| {
        let mm = &manager.new_mm().unwrap();
        mm.mmap(&request(2)).unwrap();
        let (end, stored) = (Instant::now() + stress_time(), &AtomicU64::new(0));
        machine.spawn_cpus(4, |cpu| {
            let mut rng = fastrand::Rng::with_seed(cpu.0.into());
            if cpu.0 == 3 {
                while Instant::now() < end {
                    match rng.u32(..4) {
                        0 => mm.fork().unwrap().exit(),
                        1 => mm.mprotect(VirtAddr(BASE), 2 * GIB, RW).unwrap(),
                        2 => _ = mm.madvise(VirtAddr(BASE + GIB), GIB, Advice::DontNeed),
                        _ => std::thread::sleep(Duration::from_millis(5)),
                    }
                }
                return;
            }
            if cpu.0 == 2 {
                return clear_ahead_until(manager, end);
            }
            // The first page is never dropped: what a CPU stored there stays.
            mm.switch_in();
            let own = |piece: u64| BASE + piece * HUGE + u64::from(cpu.0) * 8;
            let mut words = BTreeMap::new();
            while Instant::now() < end {
                let (piece, word) = (rng.u64(..1024), stored.fetch_add(1, Ordering::Relaxed));
                if store(machine, mm, own(piece), word).is_ok() && piece < 512 {
                    words.insert(piece, word);
                }
            }
            words.iter().for_each(|(&piece, &word)| assert_eq!(load(machine, mm, own(piece)), Ok(word)));
            mm.switch_out();
        });
        mm.validate().unwrap();
        mm.munmap(VirtAddr(BASE), 2 * GIB).unwrap();
        assert_eq!(info(manager, Size1G), ALL_FREE(4));
    });
}
