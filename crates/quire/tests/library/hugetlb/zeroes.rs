//! What is known to be zero of pages in pools: nothing is cleared twice, and nothing is handed out that is not
//! zero. Debug builds look at each page that is handed out as zero (invariant 9).

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hosted::raw::{IsolatedMemory, RawPools};
use hosted::{Hosted, HostedConfig};
use quire::addr::{Frame, VirtAddr};
use quire::arch::Access;
use quire::cpu::CpuId;
use quire::error::FaultError;
use quire::hugetlb::HugeSize;
use quire::limits::CLEAR_STRETCH_BYTES;
use quire::manager::{Config, MemoryManager};
use quire::page_alloc::{AllocatorConfig, MemoryRange, NodeSet, Zeroes};
use quire::platform::Platform;
use quire::stats::Stat;
use quire::vm::{FolioPolicy, MapRequest};

use crate::hugetlb::world::{BASE, HUGE, private, store};
use crate::watched::{Event, Watched};
use testkit::ranges_of;

use HugeSize::{Size1G, Size2M};

const GIB: u64 = 1 << 30;

/// Runs `test` on a machine whose memory is zero at the start, if `promised`.
pub(super) fn with_zeroes<P: Platform + IsolatedMemory>(
    platform: &P,
    machine: &Hosted,
    promised: bool,
    zeroes: Zeroes,
    test: impl FnOnce(&MemoryManager<'_, P>),
) {
    machine.run_on(CpuId(0), || {
        let ranges: Vec<_> =
            ranges_of(machine).into_iter().map(|range| MemoryRange { zeroed: promised, ..range }).collect();
        let allocator = AllocatorConfig { zeroes, ..AllocatorConfig::default() };
        // So that faults clear pages of 1 GiB whole: file `pieces.rs` tests the other way.
        let folios = FolioPolicy::default().with_on_demand(false);
        let config = Config { allocator, folios, ..Config::default() };
        let manager = hosted::raw::memory_manager(platform, &ranges, &config).unwrap();
        test(&manager);
        manager.huge_pools().validate(manager.pages()).unwrap();
        manager.validate().unwrap();
    });
}

pub(super) fn resize<P: Platform + IsolatedMemory>(
    manager: &MemoryManager<'_, P>,
    size: HugeSize,
    pages: u64,
) {
    let done = manager.huge_pools().resize(manager.pages(), size, NodeSet::ALL, pages);
    assert_eq!((done.after, done.stopped), (pages, None));
}

/// Touches huge pages in an address space of their own; returns how many bytes of them were cleared.
pub(super) fn touch(
    machine: &Hosted,
    manager: &MemoryManager<'_, Hosted>,
    size: HugeSize,
    pages: u64,
) -> u64 {
    let mm = manager.new_mm().unwrap();
    mm.switch_in();
    mm.mmap(&MapRequest { len: pages * size.bytes(), huge: Some(size), ..private(BASE, 1) }).unwrap();
    // The tables are made before.
    let cleared = Cell::new(0);
    for page in 0..pages {
        let before = machine.counters().bytes_cleared;
        store(machine, &mm, BASE + page * size.bytes() + 12345 * 8, 1).unwrap();
        let bytes = machine.counters().bytes_cleared - before;
        // Page tables are cleared, too, a page each.
        cleared.set(cleared.get() + bytes / CLEAR_STRETCH_BYTES * CLEAR_STRETCH_BYTES);
    }
    mm.switch_out();
    drop(mm);
    cleared.get()
}

#[test]
fn memory_that_is_zero_is_not_cleared_for_a_pool() {
    let machine = HostedConfig::new(64 << 20).build().unwrap();
    with_zeroes(&machine, &machine, true, Zeroes::default(), |manager| {
        resize(manager, Size2M, 8);
        assert_eq!(touch(&machine, manager, Size2M, 3), 0);
        // Those that were used come last, and are cleared again.
        assert_eq!(touch(&machine, manager, Size2M, 8), 3 * HUGE);
        assert_eq!(touch(&machine, manager, Size2M, 8), 8 * HUGE);
        // What goes back to the allocator and comes again is known as it was.
        resize(manager, Size2M, 0);
        resize(manager, Size2M, 16);
        assert_eq!(touch(&machine, manager, Size2M, 8), 0);
    });
}

#[test]
fn marks_follow_pages_that_are_demoted_promoted_and_given_back() {
    let config = HostedConfig::new(3 * GIB);
    let machine = config.build().unwrap();
    let zeroes = Zeroes { verify: false, ..Zeroes::default() };
    with_zeroes(&machine, &machine, true, zeroes, |manager| {
        let (pools, pages) = (manager.huge_pools(), manager.pages());
        let known = || pages.lists().stat(Stat::PgzeroKnown);
        resize(manager, Size1G, 1);
        assert_eq!(pools.demote(pages, NodeSet::ALL, 1).done, 1);
        assert_eq!(touch(&machine, manager, Size2M, 3), 0);
        // A few page tables are known to be zero as well.
        assert_eq!(known() / 512, 3);
        assert_eq!(pools.promote(pages, NodeSet::ALL, 1).done, 1);
        assert_eq!(touch(&machine, manager, Size1G, 1), 3 * HUGE, "the three that were used");
        assert_eq!(touch(&machine, manager, Size1G, 1), GIB);
        // A page of which a part is known goes back to the allocator, and its blocks stay known.
        resize(manager, Size1G, 0);
        resize(manager, Size1G, 1);
        assert_eq!(pools.demote(pages, NodeSet::ALL, 1).done, 1);
        assert_eq!(touch(&machine, manager, Size2M, 512), 0, "another gigabyte");
        assert_eq!(pools.promote(pages, NodeSet::ALL, 1).done, 1);
        resize(manager, Size1G, 0);
        let zeroed = pages.zone_info().map(|zone| zone.zeroed).sum::<u64>();
        assert!(zeroed < GIB / 4096, "{zeroed} frames: two of three gigabytes were used");
    });
}

/// A page of 1 GiB of which some blocks are zero goes to the allocator and comes back with the same marks.
#[test]
fn a_page_in_part_zero_stays_so_in_the_allocator() {
    let machine = HostedConfig::new(2 * GIB).build().unwrap();
    let zeroes = Zeroes { verify: false, ..Zeroes::default() };
    with_zeroes(&machine, &machine, true, zeroes, |manager| {
        let (pools, pages) = (manager.huge_pools(), manager.pages());
        resize(manager, Size1G, 1);
        for _ in 0..2 {
            assert_eq!(pools.demote(pages, NodeSet::ALL, 1).done, 1);
            touch(&machine, manager, Size2M, 5);
            assert_eq!(pools.promote(pages, NodeSet::ALL, 1).done, 1);
            resize(manager, Size1G, 0);
            resize(manager, Size1G, 1);
        }
        let cleared = touch(&machine, manager, Size1G, 1);
        assert!((5 * HUGE..=11 * HUGE).contains(&cleared), "{} blocks", cleared / HUGE);
    });
}

#[test]
fn what_a_dying_task_has_cleared_is_not_cleared_again() {
    let machine = HostedConfig::new(2 * GIB).build().unwrap();
    let watched = Watched::new(&machine);
    let zeroes = Zeroes { verify: false, ..Zeroes::default() };
    with_zeroes(&watched, &machine, false, zeroes, |manager| {
        resize(manager, Size1G, 1);
        let mm = manager.new_mm().unwrap();
        mm.mmap(&MapRequest { len: GIB, huge: Some(Size1G), ..private(BASE, 1) }).unwrap();
        watched.events();
        watched.dies_after(Some(100));
        assert_eq!(mm.fault(VirtAddr(BASE), Access::Write), Err(FaultError::Dying));
        assert_eq!(mm.rss().huge, 0, "nothing of it can be seen");
        assert_eq!(manager.huge_pools().info(manager.pages(), Size1G).free, 1);
        let cleared = || -> u64 {
            let frames = |event: Event| if let Event::Clear(frames, _) = event { frames.count } else { 0 };
            watched.events().into_iter().map(frames).filter(|&frames| frames > 1).sum()
        };
        let first = cleared();
        assert!(first > 10 * 512, "{first}");
        watched.dies_after(None);
        mm.fault(VirtAddr(BASE), Access::Write).unwrap();
        let all = first + cleared();
        assert!(all < GIB / 4096 + 512, "at most a block was begun in vain: {all}");
    });
}

#[test]
fn idle_cpus_clear_free_pages_up_to_the_budget() {
    let machine = HostedConfig::new(64 << 20).build().unwrap();
    let zeroes = Zeroes { pools_ahead: 5 * 512, ..Zeroes::default() };
    with_zeroes(&machine, &machine, false, zeroes, |manager| {
        resize(manager, Size2M, 8);
        assert_eq!(std::iter::from_fn(|| manager.zero_ahead().then_some(())).count(), 5);
        assert_eq!(manager.pages().lists().stat(Stat::PgzeroAhead), 5 * 512);
        assert_eq!(touch(&machine, manager, Size2M, 5), 0, "they are the next to be taken");
        assert_eq!(std::iter::from_fn(|| manager.zero_ahead().then_some(())).count(), 5);
    });
}

#[test]
fn a_gigantic_page_is_cleared_ahead_block_by_block() {
    let machine = HostedConfig::new(2 * GIB).build().unwrap();
    let zeroes = Zeroes { pools_ahead: u64::MAX, verify: false, ..Zeroes::default() };
    with_zeroes(&machine, &machine, false, zeroes, |manager| {
        resize(manager, Size1G, 1);
        for _ in 0..100 {
            assert!(manager.zero_ahead());
        }
        assert_eq!(touch(&machine, manager, Size1G, 1), GIB - 100 * HUGE);
        assert_eq!(std::iter::from_fn(|| manager.zero_ahead().then_some(())).count(), 512);
        assert_eq!(touch(&machine, manager, Size1G, 1), 0);
    });
}

/// Of a page whose first block alone is not zero, that block is the last to be cleared: the page is the next to
/// be taken by a use that needs zeroes.
#[test]
fn a_page_is_known_once_its_last_block_is_wherever_it_stands() {
    let machine = HostedConfig::new(3 * GIB).build().unwrap();
    let zeroes = Zeroes { pools_ahead: u64::MAX, verify: false, ..Zeroes::default() };
    with_zeroes(&machine, &machine, true, zeroes, |manager| {
        let (pools, pages) = (manager.huge_pools(), manager.pages());
        let take = |size| pools.take(pages, size, NodeSet::ALL, false).unwrap();
        resize(manager, Size1G, 2);
        assert_eq!(pools.demote(pages, NodeSet::ALL, 1).done, 1);
        let part = take(Size2M);
        pools.give_raw(pages, Size2M, part, false);
        assert_eq!(pools.promote(pages, NodeSet::ALL, 1).done, 1);
        assert_eq!(std::iter::from_fn(|| manager.zero_ahead().then_some(())).count(), 1);
        let page = take(Size1G);
        assert_eq!(page.0, part.0 & !(Size1G.order().frames() - 1));
        pools.give_raw(pages, Size1G, page, false);
    });
}

/// Pages are taken, stored to and given back while idle CPUs clear them: none is taken that an idle CPU still
/// clears, and none is lost.
#[test]
fn pages_are_taken_while_idle_cpus_clear_them() {
    let machine = HostedConfig::new(64 << 20).with_cpus(3).build().unwrap();
    let zeroes = Zeroes { pools_ahead: u64::MAX, ..Zeroes::default() };
    let done = AtomicBool::new(false);
    let manager = machine.run_on(CpuId(0), || {
        let allocator = AllocatorConfig { zeroes, ..AllocatorConfig::default() };
        let config = Config { allocator, ..Config::default() };
        hosted::raw::memory_manager(&machine, &ranges_of(&machine), &config).unwrap()
    });
    machine.run_on(CpuId(0), || resize(&manager, Size2M, 6));
    machine.spawn_cpus(3, |cpu| {
        if cpu.0 == 2 {
            while !done.load(Ordering::Relaxed) {
                manager.zero_ahead();
            }
            return;
        }
        for round in 0..300_u64 {
            let mm = manager.new_mm().unwrap();
            mm.switch_in();
            mm.mmap(&private(BASE, 2)).unwrap();
            for page in 0..2 {
                store(&machine, &mm, BASE + page * HUGE + round * 4096, !0).unwrap();
            }
            mm.switch_out();
        }
        done.store(true, Ordering::Relaxed);
    });
    machine.run_on(CpuId(0), || {
        assert_eq!(manager.huge_pools().info(manager.pages(), Size2M).free, 6);
        assert!(manager.pages().lists().stat(Stat::PgzeroKnown) > 0);
        manager.validate().unwrap();
    });
}

/// A page that is taken while an idle CPU clears it is not given to its user before that CPU has stopped. A
/// fault that needs zeroes would not take it; one that copies does.
#[test]
fn a_page_is_not_cleared_under_its_user() {
    let machine = HostedConfig::new(64 << 20).with_cpus(2).build().unwrap();
    let watched = Watched::new(&machine);
    let zeroes = Zeroes { pools_ahead: u64::MAX, ..Zeroes::default() };
    let [begun, stored, ended] = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
    let wait = |flag: &AtomicBool| while !flag.load(Ordering::SeqCst) {};
    with_zeroes(&watched, &machine, false, zeroes, |manager| {
        resize(manager, Size2M, 2);
        let parent = manager.new_mm().unwrap();
        parent.switch_in();
        parent.mmap(&private(BASE, 1)).unwrap();
        let pages = || (0..512).map(|page| VirtAddr(BASE + page * 4096));
        parent.fault(VirtAddr(BASE), Access::Write).unwrap();
        pages().for_each(|page| machine.write(page, &[7]).unwrap());
        let child = parent.fork().unwrap();
        parent.switch_out();
        let (begins, waits_for) = (Arc::clone(&begun), Arc::clone(&stored));
        watched.before_clear(move || {
            begins.store(true, Ordering::SeqCst);
            // The other CPU waits for this one, unless it is wrong.
            let end = Instant::now() + Duration::from_millis(100);
            while !waits_for.load(Ordering::SeqCst) && Instant::now() < end {}
        });
        machine.spawn_cpus(2, |cpu| {
            if cpu.0 == 0 {
                manager.zero_ahead();
                return ended.store(true, Ordering::SeqCst);
            }
            wait(&begun);
            child.switch_in();
            child.fault(VirtAddr(BASE), Access::Write).unwrap();
            stored.store(true, Ordering::SeqCst);
            wait(&ended);
            for page in pages() {
                let mut byte = [0];
                machine.read(page, &mut byte).unwrap();
                assert_eq!(byte, [7], "cleared under its user");
            }
            child.switch_out();
        });
    });
}

/// While a fault clears a page, other tasks of the address space map and unmap.
#[test]
fn a_fault_clears_without_the_lock_of_its_address_space() {
    for size in HugeSize::ALL {
        let machine = HostedConfig::new(2 * GIB).with_cpus(2).build().unwrap();
        let watched = Watched::new(&machine);
        let [begun, mapped, timely] = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
        with_zeroes(&watched, &machine, false, Zeroes { verify: false, ..Zeroes::default() }, |manager| {
            resize(manager, size, 1);
            let mm = manager.new_mm().unwrap();
            mm.mmap(&MapRequest { len: size.bytes(), huge: Some(size), ..private(BASE, 1) }).unwrap();
            let (begins, waits_for, answers) = (Arc::clone(&begun), Arc::clone(&mapped), Arc::clone(&timely));
            watched.before_clear(move || {
                begins.store(true, Ordering::SeqCst);
                let end = Instant::now() + Duration::from_secs(20);
                while !waits_for.load(Ordering::SeqCst) && Instant::now() < end {
                    std::thread::yield_now();
                }
                answers.store(waits_for.load(Ordering::SeqCst), Ordering::SeqCst);
            });
            machine.spawn_cpus(2, |cpu| {
                if cpu.0 == 0 {
                    mm.fault(VirtAddr(BASE), Access::Write).unwrap();
                    return;
                }
                while !begun.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                let small = MapRequest { len: 4096, huge: None, ..private(BASE + GIB, 1) };
                mm.munmap(mm.mmap(&small).unwrap(), 4096).unwrap();
                mapped.store(true, Ordering::SeqCst);
            });
            assert!(timely.load(Ordering::SeqCst), "the fault held the lock");
            assert_eq!(mm.rss().huge, size.order().frames());
        });
    }
}

/// CPUs that fault and those that are idle clear a page of 1 GiB together, each byte once.
#[test]
fn several_cpus_clear_one_gigantic_page() {
    let machine = HostedConfig::new(3 * GIB).with_cpus(3).build().unwrap();
    let watched = Watched::new(&machine);
    let zeroes = Zeroes { verify: false, ..Zeroes::default() };
    let [begun, helped, done] = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
    with_zeroes(&watched, &machine, false, zeroes, |manager| {
        resize(manager, Size1G, 2);
        assert!(!manager.zero_ahead(), "no idle CPU clears without a budget");
        let spaces = [(); 2].map(|()| {
            let mm = manager.new_mm().unwrap();
            mm.mmap(&MapRequest { len: GIB, huge: Some(Size1G), ..private(BASE, 1) }).unwrap();
            mm
        });
        let (begins, waits_for) = (Arc::clone(&begun), Arc::clone(&helped));
        watched.events();
        let end = Instant::now() + Duration::from_secs(60);
        watched.before_clear(move || {
            begins.store(true, Ordering::SeqCst);
            while !waits_for.load(Ordering::SeqCst) && Instant::now() < end {
                std::thread::yield_now();
            }
        });
        machine.spawn_cpus(3, |cpu| {
            let waits_for = [None, Some(&helped), Some(&begun)][cpu.0 as usize];
            while waits_for.is_some_and(|flag| !flag.load(Ordering::SeqCst)) && Instant::now() < end {
                std::thread::yield_now();
            }
            if cpu.0 == 2 {
                helped.store(manager.zero_ahead(), Ordering::SeqCst);
                while !done.load(Ordering::SeqCst) {
                    manager.zero_ahead();
                }
                return;
            }
            let mm = &spaces[cpu.0 as usize];
            mm.fault(VirtAddr(BASE), Access::Write).unwrap();
            assert_eq!(mm.rss().huge, Size1G.order().frames());
            done.fetch_or(cpu.0 == 0, Ordering::SeqCst);
        });
        let large = |event: &Event| if let Event::Clear(frames, _) = event { frames.count } else { 0 };
        let cleared: u64 = watched.events().iter().map(large).filter(|&frames| frames > 1).sum();
        assert!(helped.load(Ordering::SeqCst), "a fault clears");
        assert!(cleared <= 2 * GIB / 4096, "{cleared} frames of two pages");
        assert!(cleared >= GIB / 4096 + 512, "{cleared} frames");
        assert!(!manager.zero_ahead(), "no fault clears any more");
    });
}

/// The neighbourhood of the byte that is touched is cleared last, and is warm then.
#[test]
fn the_touched_block_is_cleared_last() {
    let machine = HostedConfig::new(2 * GIB).build().unwrap();
    let watched = Watched::new(&machine);
    with_zeroes(&watched, &machine, false, Zeroes { verify: false, ..Zeroes::default() }, |manager| {
        resize(manager, Size1G, 1);
        let mm = manager.new_mm().unwrap();
        mm.mmap(&MapRequest { len: GIB, huge: Some(Size1G), ..private(BASE, 1) }).unwrap();
        watched.events();
        let touched = 300 * 512 + 17;
        mm.fault(VirtAddr(BASE + touched * 4096), Access::Write).unwrap();
        let clear = |event| if let Event::Clear(frames, _) = event { Some(frames) } else { None };
        let clears: Vec<_> =
            watched.events().into_iter().filter_map(clear).filter(|frames| frames.count > 1).collect();
        let start = clears.iter().map(|frames| frames.start).min().unwrap();
        assert!(clears.last().unwrap().contains(start.add(touched)), "{:?}", clears.last());
        let sum: u64 = clears.iter().map(|frames| frames.count).sum();
        assert_eq!(sum, GIB / 4096, "each frame once");
        mm.exit();
    });
}

/// A page that its owner took by hand is not known to be zero when it comes back.
#[test]
fn a_page_taken_by_hand_is_forgotten() {
    let machine = HostedConfig::new(64 << 20).build().unwrap();
    with_zeroes(&machine, &machine, true, Zeroes::default(), |manager| {
        resize(manager, Size2M, 1);
        let (pools, pages) = (manager.huge_pools(), manager.pages());
        let frame: Frame = pools.take(pages, Size2M, NodeSet::ALL, false).unwrap();
        pools.give_raw(pages, Size2M, frame, false);
        assert_eq!(touch(&machine, manager, Size2M, 1), HUGE);
    });
}

/// Whenever a task dies while it clears a page, even after the last stretch: the page is where the next fault
/// looks for it.
#[test]
fn a_page_that_a_dying_task_has_cleared_is_found() {
    let machine = HostedConfig::new(64 << 20).build().unwrap();
    let watched = Watched::new(&machine);
    with_zeroes(&watched, &machine, false, Zeroes::default(), |manager| {
        resize(manager, Size2M, 1);
        let dies = |lives| {
            let mm = manager.new_mm().unwrap();
            mm.mmap(&private(BASE, 1)).unwrap();
            watched.dies_after(Some(lives));
            let died = mm.fault(VirtAddr(BASE), Access::Write) == Err(FaultError::Dying);
            // A fault that waits for what never comes asks again and again.
            watched.dies_after(Some(100_000));
            mm.fault(VirtAddr(BASE), Access::Write).unwrap();
            watched.dies_after(None);
            mm.exit();
            died
        };
        let deaths = (0..).take_while(|&lives| dies(lives)).count();
        assert!(deaths > 2, "{deaths}");
    });
}
