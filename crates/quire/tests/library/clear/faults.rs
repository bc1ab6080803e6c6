//! Faults clear memory by the machine's policy: in stretches, the neighbourhood of the access last, and not
//! for a task that dies.

use hosted::{Hosted, HostedConfig};
use quire::addr::{FrameRange, Order, VirtAddr};
use quire::arch::{ClearKernel, CopyKernel, Protection};
use quire::clear::ClearPolicy;
use quire::cpu::CpuId;
use quire::error::FaultError;
use quire::limits::{CLEAR_NEAR_BYTES, CLEAR_OWN_BYTES, CLEAR_STRETCH_BYTES};
use quire::manager::Config;
use quire::page_alloc::{AllocatorConfig, MemoryRange, Zeroes};
use quire::vm::{Access, FolioPolicy, MapRequest, Mm, Placement};

use crate::watched::{Event, Watched};
use testkit::{order, ranges_of};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const BASE: u64 = GIB;

type Space<'a, 'm> = Mm<'a, Watched<'m>>;

/// Runs `test` in an address space on a machine that records what it does, with folios of this order. Each
/// folio is whole when its fault returns.
fn with_folios(
    folios: Order,
    policy: Option<ClearPolicy>,
    test: impl FnOnce(&Hosted, &Watched<'_>, &Space<'_, '_>),
) {
    // Enough for one folio of any order, wherever the tables stand.
    let bytes = if folios == Order::GIGANTIC { 2 * GIB + 256 * MIB } else { 32 * MIB };
    let machine = HostedConfig::new(bytes).build().unwrap();
    let watched = Watched::new(&machine);
    machine.run_on(CpuId(0), || {
        let zeroes = Zeroes { remember: false, ..Zeroes::default() };
        let allocator = AllocatorConfig { clear: policy, zeroes, ..AllocatorConfig::default() };
        let folios = FolioPolicy::only(folios).with_on_demand(false);
        let config = Config { folios, allocator, ..Config::default() };
        let manager = hosted::raw::memory_manager(&watched, &ranges_of(&machine), &config).unwrap();
        manager.pages().lists().drain_local();
        let before = manager.meminfo().frames;
        let mm = manager.new_mm().unwrap();
        mm.switch_in();
        watched.events();
        test(&machine, &watched, &mm);
        mm.validate().unwrap();
        mm.switch_out();
        mm.exit();
        manager.validate().unwrap();
        manager.pages().lists().drain_local();
        assert_eq!(manager.meminfo().frames.used, before.used, "frames were lost");
    });
}

fn anonymous(len: u64) -> MapRequest<'static> {
    let prot = Protection::READ | Protection::WRITE;
    MapRequest { addr: VirtAddr(BASE), len, prot, placement: Placement::Fixed, ..MapRequest::default() }
}

fn clears(events: &[Event]) -> Vec<(FrameRange, ClearKernel)> {
    let clears = events.iter().filter_map(|event| match *event {
        Event::Clear(frames, kernel) => Some((frames, kernel)),
        _ => None,
    });
    clears.collect()
}

/// One fault behind the middle of a folio. Returns what was cleared, in order, and how many frames behind the
/// folio's start the touched frame is. Each frame was cleared once, with reschedule points between stretches.
fn one_fault(
    folios: Order,
    policy: Option<ClearPolicy>,
    test: impl FnOnce(&[(FrameRange, ClearKernel)], u64),
) {
    with_folios(folios, policy, |machine, watched, mm| {
        let bytes = folios.bytes();
        mm.mmap(&anonymous(bytes.max(2 * MIB))).unwrap();
        let touched = bytes / 2 + 4096;
        let outcome = mm.fault(VirtAddr(BASE + touched), Access::Write).unwrap();
        assert_eq!(outcome.order, folios);
        let events = watched.events();
        let clears = clears(&events);
        let mut sorted: Vec<FrameRange> = clears.iter().map(|(frames, _)| *frames).collect();
        sorted.sort_by_key(|frames| frames.start);
        assert!(sorted.windows(2).all(|pair| pair[0].end() == pair[1].start), "each frame once: {sorted:?}");
        let frames: u64 = sorted.iter().map(|frames| frames.count).sum();
        assert_eq!(frames, folios.frames(), "each frame once");
        let points = events.iter().filter(|event| **event == Event::Point).count() as u64;
        assert_eq!(points, (bytes / CLEAR_STRETCH_BYTES).saturating_sub(1), "{folios:?}");
        let mut byte = [1];
        machine.read(VirtAddr(BASE + touched), &mut byte).unwrap();
        assert_eq!(byte, [0]);
        test(&clears, touched / 4096);
    });
}

/// The neighbourhood of the access is the last extent that is cleared, and that extent holds nothing else.
fn the_last_is_near(folios: Order, policy: Option<ClearPolicy>, frames_near: u64) {
    one_fault(folios, policy, |clears, touched| {
        let first = clears.iter().map(|(frames, _)| frames.start).min().unwrap();
        let last = clears.last().unwrap().0;
        let near = first.add(touched / frames_near * frames_near);
        assert_eq!((last.start, last.count), (near, frames_near), "{folios:?}");
        assert!(clears.len() > 2, "{folios:?}: something before and behind it comes first: {clears:?}");
    });
}

#[test]
fn a_fault_clears_what_is_touched_last() {
    for (folios, frames_near) in [(7, 1), (8, 2), (9, 4)] {
        the_last_is_near(order(folios), None, frames_near);
    }
}

/// A folio of 1 GiB that is cleared as a whole before its fault returns.
#[test]
#[cfg(not(miri))]
fn a_fault_clears_what_is_touched_of_a_gigabyte_last() {
    the_last_is_near(Order::GIGANTIC, None, CLEAR_NEAR_BYTES / 4096);
}

/// Up to 256 KiB are cleared through the core's own caches in one ascending run, with no neighbourhood at the
/// end: all of it stays cached.
#[test]
fn what_the_own_caches_hold_is_cleared_in_one_run() {
    for folios in [4, 5, 6] {
        assert!(order(folios).bytes() <= CLEAR_OWN_BYTES);
        one_fault(order(folios), None, |clears, _| {
            let [(run, kernel)] = clears else { panic!("order {folios} in pieces: {clears:?}") };
            assert_eq!(run.count, order(folios).frames());
            assert!(!kernel.is_streaming(), "order {folios} by {kernel:?}");
        });
    }
}

/// The same bytes cleared past the caches are not cached, so the neighbourhood comes last again. 64 KiB are
/// one run.
#[test]
fn what_goes_past_the_own_caches_leaves_the_neighbourhood_to_the_last() {
    let policy = ClearPolicy::only(ClearKernel::Movnti, CopyKernel::String);
    one_fault(order(4), Some(policy), |clears, _| assert_eq!(clears.len(), 1));
    for folios in [5, 6] {
        the_last_is_near(order(folios), Some(policy), 1);
    }
}

#[test]
fn a_task_that_dies_brings_nothing_in() {
    with_folios(Order::BLOCK, None, |machine, watched, mm| {
        mm.mmap(&anonymous(4 * MIB)).unwrap();
        for lives in 0..3 {
            watched.dies_after(Some(lives));
            assert_eq!(mm.fault(VirtAddr(BASE + 4096), Access::Write), Err(FaultError::Dying));
            assert_eq!(mm.rss().anon, 0, "nothing of it can be seen");
            assert!(machine.read(VirtAddr(BASE), &mut [0]).is_err());
        }
        // The task dies at the second folio: the first one stays.
        watched.dies_after(Some(4));
        assert!(mm.mlock(VirtAddr(BASE), 4 * MIB, false).is_err());
        assert_eq!(mm.rss().anon, 512);
        watched.dies_after(None);
        mm.fault(VirtAddr(BASE + 3 * MIB), Access::Write).unwrap();
        assert_eq!(mm.rss().anon, 1024);
    });
}

#[test]
fn a_task_that_dies_clears_nothing_ahead() {
    let machine = HostedConfig::new(32 * MIB).build().unwrap();
    let watched = Watched::new(&machine);
    machine.run_on(CpuId(0), || {
        let zeroes = Zeroes { blocks_ahead: 2 * 512, ..Zeroes::default() };
        let allocator = AllocatorConfig { zeroes, ..AllocatorConfig::default() };
        let ranges = ranges_of(&machine).into_iter().map(|range| MemoryRange { zeroed: false, ..range });
        let pages = hosted::raw::page_allocator(&watched, &ranges.collect::<Vec<_>>(), allocator).unwrap();
        let zeroed = || pages.zone_info().map(|zone| zone.zeroed).sum::<u64>();
        for lives in 0..3 {
            watched.dies_after(Some(lives));
            assert!(!pages.store().zero_ahead());
            assert_eq!(zeroed(), 0, "half a block is no block");
            pages.validate().unwrap();
        }
        watched.dies_after(None);
        watched.events();
        assert!(pages.store().zero_ahead());
        assert_eq!(zeroed(), 512);
        let events = watched.events();
        let points = events.iter().filter(|&event| *event == Event::Point).count();
        assert!(points as u64 >= 2 * MIB / CLEAR_STRETCH_BYTES - 1, "{events:?}");
    });
}

/// Memory is populated with reschedule points, whatever the folios: between two of them at most a stretch or
/// a few pages are cleared, and their tables allocated. A task that waits for the lock for writing waits for
/// 2 MiB at most.
#[test]
fn populating_lets_others_run() {
    const STRETCH: u64 = CLEAR_STRETCH_BYTES / 4096;
    for (folios, most) in [(0, 64), (4, STRETCH), (7, STRETCH), (8, STRETCH), (9, STRETCH)] {
        with_folios(order(folios), None, |_, watched, mm| {
            mm.mmap(&anonymous(8 * MIB)).unwrap();
            mm.mlock(VirtAddr(BASE), 8 * MIB, false).unwrap();
            let (mut since, mut longest, mut all, mut held) = (0, 0, 0, 0);
            for event in watched.events() {
                match event {
                    Event::Clear(frames, _) => {
                        (since, all, held) = (since + frames.count, all + frames.count, held + frames.count);
                    }
                    Event::Point => since = 0,
                    Event::Locked => held = 0,
                    _ => {}
                }
                longest = longest.max(since);
                assert!(held <= 512 + 4, "order {folios}: {held} frames under one hold of the lock");
            }
            assert!(all >= 8 * MIB / 4096);
            assert!(
                longest <= most + 4 && since <= 4,
                "order {folios}: {longest} at most, {since} at the end"
            );
        });
    }
}

/// Populating hundreds of MiB clears folio by folio past the caches; a single access does not.
#[test]
fn populating_is_one_large_extent() {
    let mut policy = ClearPolicy::only(ClearKernel::String, CopyKernel::String);
    policy.clear.as_flattened_mut().iter_mut().for_each(|row| row[10..].fill(ClearKernel::Movnti));
    with_folios(Order::BLOCK, Some(policy), |_, watched, mm| {
        let request = anonymous(4 * MIB);
        mm.mmap(&MapRequest { populate: true, ..request }).unwrap();
        let populated = clears(&watched.events());
        assert!(populated.iter().all(|(_, kernel)| *kernel == ClearKernel::Movnti), "{populated:?}");
        assert_eq!(populated.iter().map(|(frames, _)| frames.count).sum::<u64>(), 1024);
        mm.munmap(VirtAddr(BASE), 4 * MIB).unwrap();
        mm.mmap(&request).unwrap();
        mm.fault(VirtAddr(BASE), Access::Write).unwrap();
        let faulted = clears(&watched.events());
        assert!(faulted.iter().all(|(_, kernel)| *kernel == ClearKernel::String), "{faulted:?}");
    });
}

/// A page that is copied on write is copied by the policy's kernel.
#[test]
fn copies_go_by_the_policy() {
    for kernel in [CopyKernel::String, CopyKernel::Movnti] {
        let policy = ClearPolicy::only(ClearKernel::String, kernel);
        with_folios(Order::FRAME, Some(policy), |machine, watched, mm| {
            mm.mmap(&anonymous(MIB)).unwrap();
            mm.fault(VirtAddr(BASE), Access::Write).unwrap();
            machine.write(VirtAddr(BASE), b"before").unwrap();
            let child = mm.fork().unwrap();
            watched.events();
            mm.fault(VirtAddr(BASE), Access::Write).unwrap();
            let events = watched.events();
            let copied = events.iter().filter(|event| matches!(event, Event::Copy(..))).collect::<Vec<_>>();
            assert!(
                matches!(copied[..], [Event::Copy(from, _, used)] if from.count == 1 && *used == kernel),
                "{events:?}"
            );
            let mut bytes = [0; 6];
            machine.read(VirtAddr(BASE), &mut bytes).unwrap();
            assert_eq!(&bytes, b"before");
            child.exit();
        });
    }
}
