//! The page allocator alone: folios of every order, split, merged, on lists, and drawn.

use std::cell::Cell;

use fastrand::Rng;
use hosted::raw::{RawMachine, RawPages};
use hosted::{Hosted, HostedConfig};
use quire::addr::{Frame, FrameRange, Order};
use quire::arch::Entry;
use quire::page_alloc::{Gfp, Mobility, Urgency};
use quire::stats::Stat;
use quire::vm::FolioPolicy;
use testkit::{order, seed};

use super::support::{
    Case, GIB, Ground, MIB, check, cleared_again, config, report, sweep, take, unmarked, unverified,
};
use crate::vm::world::Manager;

/// Stores to all frames of a folio that the test has.
pub(super) fn write_to(machine: &Hosted, frame: Frame, folio: Order) {
    (0..folio.frames()).for_each(|at| machine.store_entry_raw(frame.add(at), 0, Entry::from_bits(1)));
}

/// Takes three folios of each order a few times, and stores to them in the second round.
fn each_order(machine: &Hosted, manager: &Manager<'_>, orders: std::ops::RangeInclusive<u8>) {
    let pages = manager.pages();
    for (number, round) in orders.flat_map(|number| (0..4).map(move |round| (number, round))) {
        let folio = order(number);
        let frames: Vec<_> = (0..3).filter_map(|_| take(manager, Gfp::USER, folio)).collect();
        assert!(!frames.is_empty(), "{folio:?}");
        for frame in frames {
            // Folios of 1 GiB would take as much of the host.
            if round == 1 && number <= 11 {
                write_to(machine, frame, folio);
                pages.free_raw(frame, folio).unwrap();
            } else {
                pages.free_zeroed_raw(frame, folio).unwrap();
            }
        }
    }
}

/// Splits a folio of zeroes, stores to some of its parts, and frees all.
fn split(machine: &Hosted, manager: &Manager<'_>, from: Order, to: Order, stored: impl Fn(u64) -> bool) {
    let folio = take(manager, Gfp::USER, from).unwrap();
    manager.pages().split_raw(folio, to).unwrap();
    for at in 0..from.frames() / to.frames() {
        let part = folio.add(at * to.frames());
        if stored(at) {
            write_to(machine, part, to);
            manager.pages().free_raw(part, to).unwrap();
        } else {
            manager.pages().free_zeroed_raw(part, to).unwrap();
        }
    }
}

thread_local! {
    /// The order that [`EACH`] tries.
    static ORDER: Cell<u8> = const { Cell::new(0) };
}

const EACH: Case = ("one order", 0, |machine, manager| {
    let number = ORDER.get();
    each_order(machine, manager, number..=number);
});

const SMALL: [Case; 2] = [
    ("folios that are split and merge again", 0, |machine, manager| {
        split(machine, manager, order(8), Order::FRAME, |_| false);
        split(machine, manager, order(8), Order::FRAME, |at| at % 3 == 0);
        split(machine, manager, order(6), order(2), |at| at % 2 == 0);
    }),
    // It comes last, since it must be cleared whole.
    ("a group of which a part is zero", 15, |machine, manager| {
        split(machine, manager, order(4), Order::FRAME, |at| at == 0);
        let pages = manager.pages();
        let gfp = Gfp { urgency: Urgency::Reserve, ..Gfp::USER };
        let all: Vec<_> = std::iter::from_fn(|| take(manager, gfp, order(4))).collect();
        assert_eq!(machine.frames_cleared_again(), 15);
        all.into_iter().for_each(|frame| pages.free_zeroed_raw(frame, order(4)).unwrap());
    }),
];

const LARGE: [Case; 2] = [
    ("blocks that are split and merge again", 0, |machine, manager| {
        split(machine, manager, order(11), Order::BLOCK, |at| at == 1);
        split(machine, manager, Order::BLOCK, Order::FRAME, |_| false);
    }),
    ("a block that becomes whole is zero as a whole", 256, |machine, manager| {
        split(machine, manager, Order::BLOCK, order(8), |at| at == 0);
    }),
];

#[test]
fn folios_of_every_order() {
    let policy = config(FolioPolicy::default());
    for number in 0..=8_u8 {
        ORDER.with(|order| order.set(number));
        check(Ground::Pieces, &HostedConfig::new(32 * MIB), &policy, &[EACH]);
    }
    for number in 9..=11 {
        ORDER.with(|order| order.set(number));
        check(Ground::Blocks, &HostedConfig::new(64 * MIB), &policy, &[EACH]);
    }
    check(Ground::Pieces, &HostedConfig::new(32 * MIB), &config(FolioPolicy::default()), &SMALL);
    check(Ground::Blocks, &HostedConfig::new(64 * MIB), &config(FolioPolicy::default()), &LARGE);
}

#[test]
fn folios_up_to_a_gigabyte() {
    let again =
        cleared_again(HostedConfig::new(3 * GIB), &unverified(FolioPolicy::default()), |machine, manager| {
            each_order(machine, manager, 0..=18);
        });
    assert_eq!(again, 0);
}

/// One drawn step. Returns how many frames a request may clear again, since a part of its folio is zero.
fn step(
    machine: &Hosted,
    manager: &Manager<'_>,
    rng: &mut Rng,
    orders: &[u8],
    held: &mut Vec<(Frame, Order)>,
) -> u64 {
    let (pages, folio) = (manager.pages(), order(orders[rng.usize(..orders.len())]));
    let gfp = Gfp { mobility: Mobility::ALL[rng.usize(..3)], urgency: Urgency::Reserve, ..Gfp::USER };
    match rng.u8(..16) {
        0..6 => {
            held.extend(take(manager, gfp, folio).map(|frame| (frame, folio)));
            return folio.frames() - 1;
        }
        6 => {
            let mut frames = [Frame(0); 40];
            let got = pages.alloc_bulk_raw(gfp, folio, &mut frames);
            frames[..got].iter().for_each(|&frame| write_to(machine, frame, folio));
            held.extend(frames[..got].iter().map(|&frame| (frame, folio)));
        }
        7..13 if !held.is_empty() => {
            for _ in 0..rng.usize(1..20).min(held.len()) {
                let (frame, folio) = held.swap_remove(rng.usize(..held.len()));
                if rng.bool() && machine.frames_still_zero(FrameRange::folio(frame, folio)) == folio.frames()
                {
                    pages.free_zeroed_raw(frame, folio).unwrap();
                } else {
                    write_to(machine, frame, folio);
                    pages.free_raw(frame, folio).unwrap();
                }
            }
        }
        13 => while rng.bool() && pages.store().zero_ahead() {},
        14 => pages.lists().drain_all(),
        _ => {}
    }
    0
}

fn draw(ground: Ground, bytes: u64, seed: u64, orders: &[u8]) {
    let again =
        cleared_again(HostedConfig::new(bytes), &config(FolioPolicy::default()), |machine, manager| {
            let stays = ground.hold(manager);
            sweep(machine, manager);
            let (mut rng, mut held) = (Rng::with_seed(seed), Vec::new());
            let drained = || manager.stat(Stat::PcpDrain);
            let mut after = unmarked(machine, manager);
            for round in 0..100 {
                let (before, drained_before) = (after, drained());
                let part = step(machine, manager, &mut rng, orders, &mut held);
                let again = report(machine);
                after = unmarked(machine, manager);
                assert!(
                    again <= before + part,
                    "{again} frames were cleared again in round {round}, seed {seed}"
                );
                // A list that overflows loses the marks of what it gives back.
                let lost = after.saturating_sub(before);
                assert!(
                    lost <= drained() - drained_before,
                    "{lost} marks were lost in round {round}, seed {seed}"
                );
            }
            let pages = manager.pages();
            held.into_iter().chain(stays.into_iter().map(|frame| (frame, Order::FRAME))).for_each(
                |(frame, folio)| {
                    write_to(machine, frame, folio);
                    pages.free_raw(frame, folio).unwrap();
                },
            );
        });
    assert_eq!(again, 0);
}

/// Folios of one order at a time are never zero in part.
#[test]
fn drawn_folios_of_one_order() {
    for number in [0, 1, 3, 4, 5, 8] {
        draw(Ground::Pieces, 16 * MIB, seed(1) + u64::from(number), &[number]);
    }
    for number in [9, 10] {
        draw(Ground::Blocks, 48 * MIB, seed(1) + u64::from(number), &[number]);
    }
}

#[test]
fn drawn_folios_of_all_orders() {
    for seed in seed(1)..seed(1) + 2 {
        draw(Ground::Pieces, 16 * MIB, seed, &[0, 0, 1, 2, 3, 4, 5, 7, 8]);
        draw(Ground::Blocks, 48 * MIB, seed, &[9, 9, 10, 11]);
    }
}
