//! Clearing by idle CPUs: how long at a time, on which node, and how it goes on after the memory was used.

use crate::watched::{Event, Watched};
use hosted::raw::{IsolatedMemory, RawPages};
use hosted::{Hosted, HostedConfig, InterruptPlan, MemoryRange as Range};
use quire::addr::{Frame, FrameRange, Order};
use quire::cpu::CpuId;
use quire::limits::{CLEAR_STRETCH_BYTES, ZERO_AHEAD_FRAMES};
use quire::page_alloc::{
    AllocatorConfig, Contents, Gfp, MemoryRange, PageAllocator, Urgency, Verdict, Zeroes,
};
use quire::platform::{Platform, TouchHint};
use testkit::{PATIENCE, held_up, ranges_of};

const MIB: u64 = 1 << 20;
const PIECE: Order = Order::new(ZERO_AHEAD_FRAMES.ilog2() as u8).unwrap();

/// An allocator over memory that is not known to be zero.
fn stale<'m, P: Platform + IsolatedMemory>(
    platform: &'m P,
    machine: &Hosted,
    zeroes: Zeroes,
) -> PageAllocator<'m, P> {
    let ranges = ranges_of(machine).into_iter().map(|range| MemoryRange { zeroed: false, ..range });
    let config = AllocatorConfig { zeroes, ..AllocatorConfig::default() };
    hosted::raw::page_allocator(platform, &ranges.collect::<Vec<_>>(), config).unwrap()
}

fn zeroed<P: Platform + IsolatedMemory>(pages: &PageAllocator<'_, P>) -> u64 {
    pages.zone_info().map(|zone| zone.zeroed).sum()
}

fn check<P: Platform + IsolatedMemory>(pages: &PageAllocator<'_, P>) {
    pages.validate().unwrap();
    pages.verify_zeroes().unwrap();
}

/// Leaves no block whole: the first free frame of each block stays in use, and the others are free. One block
/// in `known` is known to be zero.
fn break_blocks<P: Platform + IsolatedMemory>(pages: &PageAllocator<'_, P>, known: Option<u64>) {
    break_blocks_of(pages, Gfp::USER, known);
}

/// The same, for blocks that served such requests.
fn break_blocks_of<P: Platform + IsolatedMemory>(pages: &PageAllocator<'_, P>, gfp: Gfp, known: Option<u64>) {
    let gfp = Gfp { urgency: Urgency::Reserve, ..gfp };
    let mut frames: Vec<Frame> = std::iter::from_fn(|| pages.alloc_raw(gfp, Order::FRAME).ok()).collect();
    frames.sort_unstable();
    let mut kept = None;
    for frame in frames {
        if kept != Some(frame.block()) {
            kept = Some(frame.block());
        } else if known.is_some_and(|each| frame.0 % each == each - 1) {
            pages.clear_raw(FrameRange::folio(frame, Order::FRAME), TouchHint::Later);
            pages.free_zeroed_raw(frame, Order::FRAME).unwrap();
        } else {
            pages.free_raw(frame, Order::FRAME).unwrap();
        }
    }
    pages.lists().drain_all();
}

/// The most frames cleared between two reschedule points, and all together.
fn cleared(events: &[Event]) -> (u64, u64) {
    let (mut since, mut longest, mut all) = (0, 0, 0);
    for event in events {
        match event {
            Event::Clear(frames, _) => (since, all) = (since + frames.count, all + frames.count),
            Event::Point => since = 0,
            _ => {}
        }
        longest = longest.max(since);
    }
    (longest, all)
}

/// Runs a machine whose free memory is all in blocks in small pieces, of which so many are to be kept ready.
fn with_pieces(
    ahead: u64,
    known: Option<u64>,
    test: impl FnOnce(&Watched<'_>, &PageAllocator<'_, Watched<'_>>),
) {
    let machine = HostedConfig::new(32 * MIB).build().unwrap();
    let watched = Watched::new(&machine);
    machine.run_on(CpuId(0), || {
        let pages = stale(&watched, &machine, Zeroes { pieces_ahead: ahead, ..Zeroes::default() });
        break_blocks(&pages, known);
        watched.events();
        test(&watched, &pages);
        check(&pages);
    });
}

#[test]
fn others_run_between_the_pieces() {
    with_pieces(2048, None, |watched, pages| {
        while pages.store().zero_ahead() {}
        let (longest, all) = cleared(&watched.events());
        assert!(all >= 2048, "{all}");
        assert!(longest <= CLEAR_STRETCH_BYTES / 4096, "{longest} frames without a reschedule point");
    });
}

#[test]
fn a_task_that_dies_leaves_the_other_pieces() {
    for lives in 0..4 {
        with_pieces(2048, None, |watched, pages| {
            watched.dies_after(Some(lives));
            assert!(!pages.store().zero_ahead(), "it has something else to do");
            let pieces = lives * ZERO_AHEAD_FRAMES as u64;
            assert_eq!((cleared(&watched.events()).1, zeroed(pages)), (pieces, pieces));
            watched.dies_after(None);
            assert!(pages.store().zero_ahead());
        });
    }
}

/// Used blocks still contain single frames that are known to be zero. The other frames are cleared all the
/// same.
#[test]
fn left_over_zeroes_do_not_stop_the_next_round() {
    for each in [512, ZERO_AHEAD_FRAMES as u64] {
        with_pieces(4096, Some(each), |_, pages| {
            let before = zeroed(pages);
            assert!((1..4096).contains(&before), "{before}");
            assert!(pages.store().zero_ahead(), "one frame in {each} is zero");
            while pages.store().zero_ahead() {}
            assert!(zeroed(pages) >= 4096, "{} of one in {each}", zeroed(pages));
        });
    }
}

#[test]
fn what_was_used_in_part_is_made_ready_again() {
    with_pieces(4096, None, |_, pages| {
        for round in 0..4 {
            while pages.store().zero_ahead() {}
            assert!(zeroed(pages) >= 4096, "round {round}: {}", zeroed(pages));
            let known = || pages.alloc_maybe_zeroed_raw(Gfp::USER, PIECE).ok();
            let (untouched, used): (Vec<_>, Vec<_>) = std::iter::from_fn(known)
                .enumerate()
                .partition(|(at, (_, contents))| *contents == Contents::Zeroed && at % 8 == 0);
            used.iter().for_each(|(_, (frame, _))| pages.free_raw(*frame, PIECE).unwrap());
            untouched.iter().for_each(|(_, (frame, _))| pages.free_zeroed_raw(*frame, PIECE).unwrap());
            pages.lists().drain_all();
            assert!((1..4096).contains(&zeroed(pages)), "round {round}: {}", zeroed(pages));
        }
    });
}

/// Each node has its share of the ready blocks, whichever node comes first, but for the remainder of one
/// block.
#[test]
fn nodes_share_the_budget_by_their_memory() {
    let cases =
        [([64, 64], 8, [4, 4]), ([64, 192], 16, [4, 12]), ([192, 64], 16, [12, 4]), ([64, 64], 1, [1, 0])];
    for (sizes, blocks, shares) in cases {
        let ranges = [(0, sizes[0]), (sizes[0], sizes[1])].into_iter().enumerate();
        let ranges = ranges.map(|(node, (at, size))| Range::new(at * MIB, size * MIB).on_node(node as u8));
        let machine = HostedConfig::new(MIB)
            .with_ranges(ranges.collect())
            .with_cpus(2)
            .with_nodes(vec![0, 1])
            .build()
            .unwrap();
        machine.run_on(CpuId(0), || {
            let pages = stale(&machine, &machine, Zeroes { blocks_ahead: blocks * 512, ..Zeroes::default() });
            while pages.store().zero_ahead() {}
            let ready = pages.zone_info().map(|zone| zone.zeroed / 512).collect::<Vec<_>>();
            assert_eq!(ready.iter().sum::<u64>(), blocks, "{sizes:?}: {ready:?}");
            let near = ready.iter().zip(shares).all(|(ready, share)| ready.abs_diff(share) <= 1);
            assert!(near, "{sizes:?}: {ready:?}");
            check(&pages);
        });
    }
}

/// The lowest block that is not zero is cleared next, also when the 64 blocks of a word and more are zero
/// before it.
#[test]
fn blocks_behind_many_that_are_zero_are_cleared() {
    let machine = HostedConfig { clearing: false, ..HostedConfig::new(256 * MIB) }.build().unwrap();
    machine.run_on(CpuId(0), || {
        let pages = stale(&machine, &machine, Zeroes { blocks_ahead: 100 * 512, ..Zeroes::default() });
        while pages.store().zero_ahead() {}
        assert_eq!(zeroed(&pages), 100 * 512);
        pages.validate().unwrap();
    });
}

/// A frame that an idle CPU clears is free: it goes bad in a moment, and no machine stops for it.
#[test]
fn a_frame_that_goes_bad_while_it_is_cleared_is_free_soon() {
    let pieces = |machine: &Hosted| {
        machine.run_on(CpuId(0), || {
            let watched = Watched::new(machine);
            let pages = stale(&watched, machine, Zeroes { pieces_ahead: 2048, ..Zeroes::default() });
            break_blocks_of(&pages, Gfp::KERNEL, None);
            watched.events();
            assert!(pages.store().zero_ahead());
            let clear =
                |event: &Event| if let Event::Clear(frames, _) = *event { Some(frames.start) } else { None };
            watched.events().iter().find_map(clear).expect("it cleared a piece")
        })
    };
    let config = HostedConfig::new(32 * MIB).with_cpus(2);
    let frame = pieces(&config.clone().build().unwrap()).add(3);
    let (mut round, mut calls, mut verdicts) = (0, 0, Vec::new());
    while round <= calls && !verdicts.ends_with(&[Verdict::Busy, Verdict::Lost]) {
        let machine = config.clone().build().unwrap();
        let pages = machine.run_on(CpuId(0), || {
            let pages = stale(&machine, &machine, Zeroes { pieces_ahead: 2048, ..Zeroes::default() });
            break_blocks_of(&pages, Gfp::KERNEL, None);
            pages
        });
        let plan = InterruptPlan::Nth(round);
        let held = held_up(&machine, plan, PATIENCE, || pages.store().zero_ahead(), || pages.condemn(frame));
        verdicts.extend(held.in_time.then_some(held.second));
        machine.run_on(CpuId(0), || check(&pages));
        (round, calls) = (round + 1, held.calls);
    }
    println!("{round} moments, {verdicts:?}");
    assert!(verdicts.contains(&Verdict::Busy), "it was being cleared");
    assert!(verdicts.iter().all(|verdict| matches!(verdict, Verdict::Busy | Verdict::Lost)), "{verdicts:?}");
}
