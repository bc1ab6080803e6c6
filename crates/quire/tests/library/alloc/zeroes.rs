//! Free memory that is known to be zero: which requests get it, which frees keep it, and that it is zero.

use hosted::raw::{RawCounts, RawPages};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use fastrand::Rng;
use hosted::{Hosted, HostedConfig};
use quire::addr::{Frame, FrameRange, Order, PageSize};
use quire::clear::Extent;
use quire::cpu::CpuId;
use quire::error::{AllocError, FreeError};
use quire::page_alloc::{
    AllocatorConfig, Contents, Gfp, MemoryRange, Mobility, PageAllocator, Urgency, Violation, Zeroes,
};
use quire::platform::{FramePlatform, TouchHint};
use quire::stats::Stat;
use testkit::{order, ranges_of, seed};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

type Pages<'m> = PageAllocator<'m, Hosted>;

/// Runs `test` with an allocator over memory that is promised to be zero, or not, and checks all marks at the
/// end.
fn with_zeroes(config: HostedConfig, promised: bool, zeroes: Zeroes, test: impl FnOnce(&Hosted, &Pages<'_>)) {
    let machine = config.build().unwrap();
    machine.run_on(CpuId(0), || {
        let ranges: Vec<_> =
            ranges_of(&machine).into_iter().map(|range| MemoryRange { zeroed: promised, ..range }).collect();
        let config = AllocatorConfig { zeroes, ..AllocatorConfig::default() };
        let pages = hosted::raw::page_allocator(&machine, &ranges, config).unwrap();
        test(&machine, &pages);
        check(&pages);
        pages.lists().drain_all();
        check(&pages);
    });
}

fn check(pages: &Pages<'_>) {
    pages.validate().unwrap();
    pages.verify_zeroes().unwrap();
}

/// A word of a frame that the test has.
fn word(machine: &Hosted, frame: Frame, index: usize) -> &AtomicU64 {
    assert!(index < 512);
    // SAFETY: the machine maps every frame for as long as it lives, and the test looks at frames that it was given.
    unsafe { &*machine.direct_map(frame.addr()).cast::<AtomicU64>().add(index) }
}

/// Writes to all frames of a folio.
fn write_to(machine: &Hosted, frame: Frame, order: Order) {
    (0..order.frames()).for_each(|at| word(machine, frame.add(at), at as usize % 512).store(0xdead, Relaxed));
}

fn known(pages: &Pages<'_>, folio: Order) -> (Frame, bool) {
    let (frame, contents) = pages.alloc_maybe_zeroed_raw(Gfp::USER, folio).unwrap();
    (frame, contents == Contents::Zeroed)
}

fn zeroed(pages: &Pages<'_>) -> u64 {
    pages.zone_info().map(|zone| zone.zeroed).sum()
}

#[test]
fn what_was_promised_need_not_be_cleared() {
    with_zeroes(HostedConfig::new(64 * MIB), true, Zeroes::default(), |machine, pages| {
        for number in 0..=11 {
            let (frame, is_known) = known(pages, order(number));
            assert!(is_known, "order {number}");
            write_to(machine, frame, order(number));
        }
        assert_eq!(pages.lists().stat(Stat::PgzeroKnown), (0..=11).map(|number| 1 << number).sum::<u64>());
    });
    let forget = Zeroes { remember: false, ..Zeroes::default() };
    for (promised, zeroes) in [(false, Zeroes::default()), (true, forget)] {
        with_zeroes(HostedConfig::new(64 * MIB), promised, zeroes, |_, pages| {
            for number in 0..=11 {
                assert!(!known(pages, order(number)).1, "order {number}");
            }
        });
    }
}

#[test]
fn untouched_folios_keep_their_mark_and_others_lose_it() {
    with_zeroes(HostedConfig::new(64 * MIB), false, Zeroes::default(), |machine, pages| {
        for number in [0, 3, 4, 6, 8, 9, 10] {
            let folio = order(number);
            let (frame, is_known) = known(pages, folio);
            assert!(!is_known);
            let all = Extent::new(FrameRange::folio(frame, folio), TouchHint::Later);
            pages.clear_extent_raw(&all).unwrap();
            pages.free_zeroed_raw(frame, folio).unwrap();
            assert_eq!(zeroed(pages), folio.frames(), "order {number}");
            let (again, is_known) = known(pages, folio);
            // Lists hand out first what they fetched before; the store hands out known zeroes first.
            if number > 9 {
                assert!(is_known && again == frame, "order {number}");
            }
            write_to(machine, again, folio);
            pages.free_raw(again, folio).unwrap();
            pages.lists().drain_all();
            for _ in 0..2 {
                let (next, is_known) = known(pages, folio);
                assert!(!is_known || next != again, "order {number}: it was stored to");
                write_to(machine, next, folio);
                pages.free_raw(next, folio).unwrap();
            }
            pages.lists().drain_all();
        }
    });
}

#[test]
fn a_request_that_needs_no_zeroes_takes_other_memory() {
    with_zeroes(HostedConfig::new(3 * GIB), false, Zeroes::default(), |_, pages| {
        // The first GiB is stale, the second known, the third stale.
        let folios: Vec<_> = (0..2).map(|_| pages.alloc_raw(Gfp::USER, Order::GIGANTIC).unwrap()).collect();
        pages.free_raw(folios[0], Order::GIGANTIC).unwrap();
        pages.free_zeroed_raw(folios[1], Order::GIGANTIC).unwrap();
        let inside = |frame: Frame| FrameRange::folio(folios[1], Order::GIGANTIC).contains(frame);
        let (whole, is_known) = known(pages, Order::GIGANTIC);
        assert!(is_known && whole == folios[1]);
        pages.free_zeroed_raw(whole, Order::GIGANTIC).unwrap();
        let other = pages.alloc_raw(Gfp::USER, order(12)).unwrap();
        assert!(!inside(other));
        let (zero, is_known) = known(pages, order(12));
        assert!(is_known && inside(zero));
        let mut contig = pages.alloc_contig_raw(Gfp::USER.for_zeroes(), 3, 1).unwrap();
        assert!(inside(contig), "a range, too");
        pages.free_contig_raw(contig, 3).unwrap();
        contig = pages.alloc_contig_raw(Gfp::USER, 3, 1).unwrap();
        assert!(!inside(contig));
    });
    // Within one block in small pieces.
    with_zeroes(HostedConfig::new(64 * MIB), false, Zeroes::default(), |_, pages| {
        let keep = pages.alloc_raw(Gfp::USER, order(5)).unwrap();
        let piece = pages.alloc_raw(Gfp::USER, order(5)).unwrap();
        assert_eq!(keep.block(), piece.block());
        pages.free_zeroed_raw(piece, order(5)).unwrap();
        let other = pages.alloc_raw(Gfp::USER, order(5)).unwrap();
        assert!(other.block() == keep.block() && other != piece);
        assert_eq!(known(pages, order(5)), (piece, true));
        assert!(!known(pages, order(5)).1);
    });
}

/// A leaf that maps a part of a folio says nothing about the rest.
#[test]
fn the_last_leaf_speaks_for_what_it_maps() {
    with_zeroes(HostedConfig::new(64 * MIB), false, Zeroes::default(), |_, pages| {
        for (folio, kept) in [(order(9), 512), (order(10), 0)] {
            let frame = pages.alloc_raw(Gfp::USER, folio).unwrap();
            let before = zeroed(pages);
            let parts = || (0..folio.frames()).step_by(512).map(|at| frame.add(at));
            parts().for_each(|part| pages.counts().counter().map_large(part, PageSize::Size2M));
            parts().for_each(|part| {
                pages.counts().counter().unmap_large_raw(part, PageSize::Size2M, Contents::Zeroed);
            });
            assert_eq!(zeroed(pages) - before, kept, "{folio:?}");
        }
    });
}

/// Invariant M5: memory that the manager reads is free.
#[test]
fn a_wrong_mark_is_found() {
    let quiet = Zeroes { verify: false, ..Zeroes::default() };
    for number in [0, 5, 9] {
        with_zeroes(HostedConfig::new(64 * MIB), false, quiet, |machine, pages| {
            let frame = pages.alloc_raw(Gfp::USER, order(number)).unwrap();
            let last = frame.add(order(number).frames() - 1);
            let word = word(machine, last, 511);
            word.store(1, Relaxed);
            pages.free_zeroed_raw(frame, order(number)).unwrap();
            assert_eq!(pages.verify_zeroes(), Err(Violation::NotZero(last)));
            pages.validate().unwrap();
            word.store(0, Relaxed);
        });
    }
}

#[test]
#[should_panic = "is not zero although it is known to be"]
fn a_wrong_mark_stops_the_machine_that_verifies() {
    with_zeroes(HostedConfig::new(64 * MIB), false, Zeroes::default(), |machine, pages| {
        let frame = pages.alloc_raw(Gfp::USER, order(10)).unwrap();
        write_to(machine, frame.add(7), Order::FRAME);
        pages.free_zeroed_raw(frame, order(10)).unwrap();
        let _ = pages.alloc_maybe_zeroed_raw(Gfp::USER, order(10));
    });
}

/// One random allocation, store or free. A free says "zero" only for memory that was not stored to.
fn step(machine: &Hosted, pages: &Pages<'_>, rng: &mut Rng, held: &mut Vec<(Frame, Order, bool)>) {
    let number = [0, 0, 1, 3, 4, 5, 7, 8, 9, 9, 10][rng.usize(..11)];
    let mobility = Mobility::ALL[rng.usize(..3)];
    let gfp = Gfp { mobility, urgency: Urgency::Reserve, ..Gfp::USER };
    let folio = order(number);
    match rng.u8(..16) {
        0..4 => held.extend(pages.alloc_maybe_zeroed_raw(gfp, folio).ok().map(|(frame, contents)| {
            let clean = contents == Contents::Zeroed;
            (frame, folio, clean)
        })),
        4..6 => held.extend(pages.alloc_raw(gfp, folio).ok().map(|frame| (frame, folio, false))),
        6 => {
            let mut frames = [Frame(0); 40];
            let got = pages.alloc_bulk_raw(gfp, folio, &mut frames);
            held.extend(frames[..got].iter().map(|&frame| (frame, folio, false)));
        }
        7..14 if !held.is_empty() => {
            for _ in 0..rng.usize(1..20).min(held.len()) {
                let (frame, folio, clean) = held.swap_remove(rng.usize(..held.len()));
                if clean && rng.bool() {
                    pages.free_zeroed_raw(frame, folio).unwrap();
                } else {
                    write_to(machine, frame, folio);
                    pages.free_raw(frame, folio).unwrap();
                }
            }
        }
        14 => while rng.bool() && pages.store().zero_ahead() {},
        15 if rng.u8(..8) == 0 => pages.lists().drain_all(),
        _ => {}
    }
}

/// Invariant 9.
#[test]
fn marks_survive_nothing_that_they_should_not() {
    for seed in seed(1)..seed(1) + 6 {
        let zeroes = Zeroes { blocks_ahead: 4096, pieces_ahead: 2048, ..Zeroes::default() };
        with_zeroes(HostedConfig::new(48 * MIB), seed % 2 == 0, zeroes, |machine, pages| {
            let (mut rng, mut held) = (Rng::with_seed(seed), Vec::new());
            for round in 0..3000 {
                step(machine, pages, &mut rng, &mut held);
                if round % 250 == 0 {
                    check(pages);
                }
            }
            assert!(pages.lists().stat(Stat::PgzeroKnown) > 500, "{}", pages.lists().stat(Stat::PgzeroKnown));
            held.iter().for_each(|&(frame, folio, _)| pages.free_raw(frame, folio).unwrap());
        });
    }
}

/// Invariant 9, with several CPUs.
#[test]
fn idle_cpus_and_others_share_a_machine() {
    let zeroes = Zeroes { blocks_ahead: 4096, pieces_ahead: 4096, ..Zeroes::default() };
    let machine = HostedConfig::new(64 * MIB).with_cpus(3).build().unwrap();
    let pages = machine.run_on(CpuId(0), || {
        let config = AllocatorConfig { zeroes, ..AllocatorConfig::default() };
        hosted::raw::page_allocator(&machine, &ranges_of(&machine), config).unwrap()
    });
    machine.spawn_cpus(3, |cpu| {
        let (mut rng, mut held) = (Rng::with_seed(cpu.0.into()), Vec::new());
        for _ in 0..4000 {
            if cpu.0 == 2 {
                pages.store().zero_ahead();
            } else {
                step(&machine, &pages, &mut rng, &mut held);
            }
        }
        held.iter().for_each(|&(frame, folio, _)| pages.free_raw(frame, folio).unwrap());
    });
    machine.run_on(CpuId(0), || check(&pages));
    assert!(pages.lists().stat(Stat::PgzeroAhead) > 0);
}

#[test]
fn idle_cpus_clear_up_to_the_budget_and_no_more() {
    let zeroes = Zeroes { blocks_ahead: 8 * 512 + 100, ..Zeroes::default() };
    with_zeroes(HostedConfig::new(64 * MIB), false, zeroes, |machine, pages| {
        let rounds = std::iter::from_fn(|| pages.store().zero_ahead().then_some(())).count();
        assert_eq!((rounds, zeroed(pages)), (8, 8 * 512));
        assert_eq!(pages.lists().stat(Stat::PgzeroAhead), 8 * 512);
        // The lowest ones are taken, so that runs arise.
        let (frame, is_known) = known(pages, order(11));
        assert!(is_known);
        write_to(machine, frame, order(11));
        pages.free_raw(frame, order(11)).unwrap();
        assert_eq!(
            std::iter::from_fn(|| pages.store().zero_ahead().then_some(())).count(),
            4,
            "the used ones"
        );
    });
}

#[test]
fn idle_cpus_clear_pieces_where_no_block_is_whole() {
    let zeroes = Zeroes { pieces_ahead: 1024, ..Zeroes::default() };
    with_zeroes(HostedConfig::new(64 * MIB), false, zeroes, |_, pages| {
        let gfp = Gfp { urgency: Urgency::Reserve, ..Gfp::USER };
        let fill =
            |folio| -> Vec<Frame> { std::iter::from_fn(|| pages.alloc_raw(gfp, folio).ok()).collect() };
        let all = fill(order(3));
        assert!(!pages.store().zero_ahead(), "memory is short");
        all.iter().for_each(|&frame| pages.free_raw(frame, order(3)).unwrap());
        pages.lists().drain_all();
        let mut all = fill(order(6));
        // Every fourth block stays in use, so that none is whole.
        let mut at = 0;
        all.retain(|&frame| {
            at += 1;
            at % 4 == 0 || pages.free_raw(frame, order(6)).is_err()
        });
        while pages.store().zero_ahead() {}
        assert!((1024..1024 + 512).contains(&zeroed(pages)), "{}", zeroed(pages));
        let is_known = (0..16).filter(|_| known(pages, order(6)).1).count();
        assert!(is_known >= 12, "{is_known}: some of it is in smaller pieces");
    });
}

/// A range that could not be emptied is restored: the parts that were known to be zero still are, and no
/// others.
#[test]
fn a_range_that_stays_in_use_keeps_its_marks() {
    with_zeroes(HostedConfig::new(64 * MIB), true, Zeroes::default(), |machine, pages| {
        let all = Gfp { urgency: Urgency::Reserve, ..Gfp::USER };
        let blocks: Vec<_> = std::iter::from_fn(|| pages.alloc_raw(all, Order::BLOCK).ok()).collect();
        // Every fourth block stays in use; every other one is stored to.
        let (kept, others): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|frame| frame.block().0 % 4 == 2);
        for frame in others {
            if frame.block().0 % 2 == 0 {
                pages.free_zeroed_raw(frame, Order::BLOCK).unwrap();
            } else {
                write_to(machine, frame, Order::BLOCK);
                pages.free_raw(frame, Order::BLOCK).unwrap();
            }
        }
        pages.lists().drain_all();
        let (before, mut shown) = (zeroed(pages), 0);
        let emptied = pages.alloc_contig_moving(Gfp::USER, 4, 1, |_| shown += 1);
        assert_eq!((emptied, shown > 0), (Err(AllocError::OutOfMemory), true));
        assert_eq!(zeroed(pages), before);
        check(pages);
        kept.into_iter().for_each(|frame| pages.free_raw(frame, Order::BLOCK).unwrap());
    });
}

/// Marks of zero are taken off what is handed out to a caller that cannot ask for them. A frame that is freed with
/// others says that it is free.
#[test]
fn frames_of_a_bulk_request_for_zeroes_are_freed_once() {
    with_zeroes(HostedConfig::new(64 * MIB), true, Zeroes::default(), |_, pages| {
        let gfp = Gfp::USER.for_zeroes();
        let mut frames = [Frame(0); 500];
        assert_eq!(pages.alloc_bulk_raw(gfp, Order::FRAME, &mut frames), 500);
        let single = pages.alloc_raw(gfp, order(3)).unwrap();
        check(pages);
        // The block stays in pieces as long as one of its frames is in use.
        pages.free_bulk_raw(Order::FRAME, &frames[1..]).unwrap();
        pages.free_raw(single, order(3)).unwrap();
        check(pages);
        let again = pages.free_bulk_raw(Order::FRAME, &frames[7..8]);
        assert_eq!(again, Err((0, FreeError::DoubleFree)));
        assert_eq!(pages.free_raw(frames[8], Order::FRAME), Err(FreeError::DoubleFree));
        pages.free_raw(frames[0], Order::FRAME).unwrap();
        pages.lists().drain_all();
        assert_eq!(pages.memory_info().used, 0);
    });
}

/// All areas of a small machine are cut. Its whole blocks are chosen by their contents all the same.
#[test]
fn where_no_page_of_1_gib_can_be_a_request_gets_the_contents_it_prefers() {
    with_zeroes(HostedConfig::new(256 * MIB), false, Zeroes::default(), |machine, pages| {
        let gfp = Gfp { urgency: Urgency::Reserve, ..Gfp::USER };
        let blocks: Vec<_> = std::iter::from_fn(|| pages.alloc_raw(gfp, Order::BLOCK).ok()).collect();
        let (lower, upper) = blocks.split_at(blocks.len() / 2);
        lower.iter().for_each(|&block| pages.free_raw(block, Order::BLOCK).unwrap());
        for &block in upper {
            (0..512)
                .for_each(|at| (0..512).for_each(|of| word(machine, block.add(at), of).store(0, Relaxed)));
            pages.free_zeroed_raw(block, Order::BLOCK).unwrap();
        }
        pages.lists().drain_all();
        let gfp = Gfp::RECLAIMABLE.for_zeroes();
        for gfp in [Gfp::USER.for_zeroes(), gfp] {
            let (frame, contents) = pages.alloc_maybe_zeroed_raw(gfp, order(7)).unwrap();
            assert_eq!((contents, upper.contains(&frame)), (Contents::Zeroed, true), "{gfp:?}");
            pages.free_raw(frame, order(7)).unwrap();
        }
    });
}
