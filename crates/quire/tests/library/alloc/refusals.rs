//! Requests of several frames that find nothing: their CPU's lists go back to the store, and after some in vain not each time.

use hosted::raw::RawPages;
use hosted::{Hosted, HostedConfig, InterruptPlan};
use quire::addr::{Frame, Order};
use quire::cpu::CpuId;
use quire::limits::{BLOCK_FRAMES, SCRAPE_FRAMES, SCRAPE_REST};
use quire::page_alloc::{Gfp, PageAllocator, Urgency};
use quire::platform::Context;
use quire::stats::Stat;
use testkit::{order, with_allocator};

type Allocator<'a> = PageAllocator<'a, Hosted>;
type Held = Vec<(Frame, Order)>;

const MIB: u64 = 1 << 20;
const THOROUGH: Gfp = Gfp { urgency: Urgency::Reserve, ..Gfp::USER };

/// Takes all memory in single frames.
fn take_all(allocator: &Allocator<'_>) -> Held {
    let take = || Some((allocator.alloc_raw(THOROUGH, Order::FRAME).ok()?, Order::FRAME));
    core::iter::from_fn(take).collect()
}

fn give(allocator: &Allocator<'_>, folios: impl IntoIterator<Item = (Frame, Order)>) {
    folios.into_iter().for_each(|(frame, order)| allocator.free_raw(frame, order).unwrap());
}

/// Makes a request, and returns how many listed frames it gave back.
fn gave_back(allocator: &Allocator<'_>, held: &mut Held, gfp: Gfp, size: u8) -> u64 {
    let before = allocator.lists().stat(Stat::PcpDrain);
    let got = allocator.alloc_raw(gfp, order(size));
    held.extend(got.ok().map(|frame| (frame, order(size))));
    allocator.lists().stat(Stat::PcpDrain) - before
}

/// All memory in use but every fourth frame, none of them on a list: no two are free side by side.
fn with_holes(config: HostedConfig, test: impl FnOnce(&Hosted, &Allocator<'_>, Held)) {
    with_allocator(config, |machine, allocator| {
        let (free, held): (Held, Held) =
            take_all(allocator).into_iter().partition(|(frame, _)| frame.0 % 4 == 0);
        give(allocator, free);
        allocator.lists().drain_local();
        test(machine, allocator, held);
    });
}

/// Takes the second half of a group of four frames, behind the first block, out of `held`.
fn take_pair(held: &mut Held) -> [(Frame, Order); 2] {
    let mut take = |frame: Frame| {
        let at = held.iter().position(|one| one.0 == frame).unwrap();
        held.swap_remove(at)
    };
    let first = Frame(2 * BLOCK_FRAMES as u64 + 2);
    [take(first), take(first.add(1))]
}

/// Frees some folios, which stay on lists, and asks for one of this order. Asked often enough, the request gets what the store
/// could give it with the lists empty.
fn ask(allocator: &Allocator<'_>, held: &mut Held, rng: &mut fastrand::Rng, size: u8) {
    for _ in 0..rng.usize(..12) {
        let at = rng.usize(..held.len());
        give(allocator, [held.swap_remove(at)]);
    }
    let listed = allocator.memory_info().cached;
    let times = u64::from(SCRAPE_REST + 1) * (listed / SCRAPE_FRAMES + 2);
    let mut got = (0..times).find_map(|_| allocator.alloc_raw(Gfp::USER, order(size)).ok());
    if got.is_none() {
        allocator.lists().drain_local();
        got = allocator.alloc_raw(Gfp::USER, order(size)).ok();
        assert_eq!(got, None, "order {size}, {listed} frames were on lists");
    }
    allocator.validate().unwrap();
    held.extend(got.map(|frame| (frame, order(size))));
}

#[test]
fn repeated_requests_get_what_listed_folios_can_give() {
    for seed in 0..24 {
        with_allocator(HostedConfig::new(12 * MIB), |_, allocator| {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut held = take_all(allocator);
            rng.shuffle(&mut held);
            let free = held.len() / [20, 8, 3][seed as usize % 3];
            give(allocator, held.drain(..free));
            allocator.lists().drain_local();
            for _ in 0..60 {
                let size = rng.choice([0, 1, 1, 2, 2, 3, 4, 6, 9]).unwrap();
                ask(allocator, &mut held, &mut rng, size);
            }
            give(allocator, held);
        });
    }
}

/// Where giving back is in vain, the lists rest for 1, 3, 7 and from then on 15 requests. A request that wants all there is
/// does not care.
#[test]
fn lists_rest_after_requests_in_vain() {
    with_holes(HostedConfig::new(12 * MIB), |_, allocator, mut held| {
        let mut expected = Vec::new();
        for rest in [1, 3, 7, 15, 15] {
            expected.push(true);
            expected.extend([false].repeat(rest));
        }
        let back = |held: &mut Held| {
            // Something to give back, and no pair.
            let at = held.iter().position(|(frame, _)| frame.0 % 4 == 2).unwrap();
            give(allocator, [held.swap_remove(at)]);
            gave_back(allocator, held, Gfp::USER, 2) > 0
        };
        let seen: Vec<bool> = expected.iter().map(|_| back(&mut held)).collect();
        assert_eq!(seen, expected);
        assert!(back(&mut held) && !back(&mut held), "the next rest has begun");
        assert!(gave_back(allocator, &mut held, THOROUGH, 2) > 0);
        give(allocator, held);
    });
}

/// A rest ends where much memory became free, and where giving back has helped.
#[test]
fn a_rest_ends_when_there_is_hope() {
    with_holes(HostedConfig::new(12 * MIB), |_, allocator, mut held| {
        let give_one = |held: &mut Held, part: u64| {
            let at = held.iter().position(|(frame, _)| frame.0 % 4 == part).unwrap();
            give(allocator, [held.swap_remove(at)]);
        };
        give_one(&mut held, 2);
        assert!(gave_back(allocator, &mut held, Gfp::USER, 2) > 0);
        // Every other frame is free then, and still no group of four.
        while held.iter().any(|(frame, _)| frame.0 % 4 == 2) {
            give_one(&mut held, 2);
        }
        assert!(gave_back(allocator, &mut held, Gfp::USER, 2) > 0, "there is more free memory");
        let back = gave_back(allocator, &mut held, Gfp::USER, 9);
        assert_eq!(back, 0, "the next rest is one request long");
        allocator.lists().drain_local();
        give_one(&mut held, 1);
        held.push((allocator.alloc_raw(Gfp::USER, order(1)).expect("a listed frame makes a pair"), order(1)));
        let mut back = || {
            give_one(&mut held, 1);
            gave_back(allocator, &mut held, Gfp::USER, 4) > 0
        };
        assert_eq!([back(), back(), back()], [true, false, true], "rests begin anew");
        give(allocator, held);
    });
}

/// Of a pair of frames, a task frees one and an interrupt inside that free the other.
#[test]
fn an_interrupts_folios_help_too() {
    let mut nested = 0;
    for call in 0..8 {
        with_holes(HostedConfig::new(12 * MIB), |machine, allocator, mut held| {
            let [first, second] = take_pair(&mut held);
            let free = |folio| give(allocator, [folio]);
            let (plan, context) = (InterruptPlan::Nth(call), Context::HardInterrupt);
            let ran = machine.interrupt_at_calls(plan, context, || free(second), || free(first));
            if ran.delivered == 0 {
                free(second);
            }
            nested += allocator.lists().stat(Stat::PcpNested);
            // The first request gives back what the task has freed; the second one rests; the third finds the interrupt's.
            let served = (0..3).find_map(|_| allocator.alloc_raw(Gfp::USER, order(1)).ok());
            assert_eq!(served, Some(first.0), "call {call}");
            held.extend(served.map(|frame| (frame, order(1))));
            give(allocator, held);
        });
    }
    assert!(nested > 0, "an interrupt came inside");
}

#[test]
fn each_cpu_rests_by_itself() {
    with_holes(HostedConfig::new(12 * MIB).with_cpus(2), |machine, allocator, mut held| {
        let pair = take_pair(&mut held);
        give(allocator, [pair[0]]);
        assert!(gave_back(allocator, &mut held, Gfp::USER, 1) > 0);
        machine.run_on(CpuId(1), || {
            give(allocator, [pair[1]]);
            let served = allocator.alloc_raw(Gfp::USER, order(1)).unwrap();
            assert_eq!(served, pair[0].0);
            held.push((served, order(1)));
        });
        give(allocator, held);
    });
}

/// All memory is in use but a block in small pieces, which has descriptors of its own. It is made whole for a request that
/// needs all of it.
#[test]
fn a_free_block_gives_up_its_own_tables_for_a_larger_request() {
    with_allocator(HostedConfig::new(32 * MIB), |_, allocator| {
        let mut blocks: Vec<Frame> =
            core::iter::from_fn(|| allocator.alloc_raw(THOROUGH, Order::BLOCK).ok()).collect();
        let rest = take_all(allocator);
        allocator.lists().drain_all();
        let block = blocks.pop().unwrap();
        // Past the lists, which stay empty.
        allocator.free_bulk_raw(Order::BLOCK, &[block]).unwrap();
        let mut frames = [Frame(0); BLOCK_FRAMES - 8];
        assert_eq!(allocator.alloc_bulk_raw(THOROUGH, Order::FRAME, &mut frames), frames.len());
        allocator.describe(frames[0]).unwrap();
        allocator.describe(frames[frames.len() - 1]).unwrap();
        allocator.free_bulk_raw(Order::FRAME, &frames).unwrap();
        let whole = || allocator.zone_info().map(|zone| zone.whole_blocks).sum::<u64>();
        assert_eq!((allocator.memory_info().free, whole()), (BLOCK_FRAMES as u64 - 2, 0));
        assert_eq!(allocator.alloc_raw(THOROUGH, Order::BLOCK), Ok(block));
        blocks.push(block);
        give(allocator, blocks.into_iter().map(|block| (block, Order::BLOCK)).chain(rest));
    });
}
