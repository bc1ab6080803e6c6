//! Frames in a row, frames by number, and memory that is added and removed.

use hosted::raw::RawPages;
use hosted::{Hosted, HostedConfig};
use quire::addr::{Frame, FrameRange, Order};
use quire::clear::Extent;
use quire::error::AllocError;
use quire::page_alloc::{Gfp, Urgency};
use quire::platform::TouchHint;
use quire::stats::Stat;
use quire::vm::FolioPolicy;

use super::alloc::write_to;
use super::support::{Case, Ground, MIB, check, config, take};
use crate::vm::world::Manager;

/// Stores to frames in a row, and frees them.
fn use_up(machine: &Hosted, manager: &Manager<'_>, frames: FrameRange) {
    (frames.start.0..frames.end().0).for_each(|at| write_to(machine, Frame(at), Order::FRAME));
    manager.pages().free_range_raw(frames).unwrap();
}

const EXACT: [Case; 4] = [
    ("exactly so many, for zeroes", 0, |machine, manager| {
        let known = manager.stat(Stat::PgzeroKnown);
        for frames in [1, 3, 5, 100, 129] {
            let run = manager.pages().alloc_exact(Gfp::USER.for_zeroes(), frames).unwrap();
            use_up(machine, manager, run.into_raw());
        }
        assert_eq!(manager.stat(Stat::PgzeroKnown), known, "its caller clears");
    }),
    ("exactly so many, for anything", 159, |machine, manager| {
        for frames in [1, 3, 5, 100, 129] {
            let run = manager.pages().alloc_exact(Gfp::USER, frames).unwrap();
            use_up(machine, manager, run.into_raw());
        }
    }),
    ("some by number", 0, |machine, manager| {
        let frame = take(manager, Gfp::USER, Order::FRAME).unwrap();
        manager.pages().free_zeroed_raw(frame, Order::FRAME).unwrap();
        manager.pages().lists().drain_all();
        let range = FrameRange::new(frame, 1);
        let run = manager.pages().alloc_at(range).unwrap();
        use_up(machine, manager, run.into_raw());
    }),
    ("a part that is freed", 0, |machine, manager| {
        let folio = Order::new(6).unwrap();
        let frame = take(manager, Gfp::USER, folio).unwrap();
        write_to(machine, frame, Order::FRAME);
        write_to(machine, frame.add(1), Order::FRAME);
        manager.pages().free_range_raw(FrameRange::new(frame, 2)).unwrap();
        (2..64).for_each(|at| manager.pages().free_zeroed_raw(frame.add(at), Order::FRAME).unwrap());
    }),
];

const WHOLE: [Case; 4] = [
    // What is cut stays in use: its block would become whole, and lose the marks of the rest.
    ("more than a block, for zeroes", 0, |machine, manager| {
        let run = manager.pages().alloc_exact(Gfp::USER.for_zeroes(), 700).unwrap().into_raw();
        (0..700).for_each(|at| write_to(machine, run.start.add(at), Order::FRAME));
    }),
    ("three of a whole block by number", 0, |machine, manager| {
        let block = take(manager, Gfp::USER, Order::BLOCK).unwrap();
        manager.pages().free_zeroed_raw(block, Order::BLOCK).unwrap();
        let run = manager.pages().alloc_at(FrameRange::new(block.add(100), 3)).unwrap().into_raw();
        (0..3).for_each(|at| write_to(machine, run.start.add(at), Order::FRAME));
    }),
    ("freed in a range that is emptied in vain", 0, |_, manager| {
        let gfp = Gfp { urgency: Urgency::Reserve, ..Gfp::USER };
        let mut all: Vec<_> = std::iter::from_fn(|| take(manager, gfp, Order::BLOCK)).collect();
        let pages = manager.pages();
        let emptied = pages.alloc_contig_moving(gfp, 2, 1, |range| {
            if let Some(at) = all.iter().position(|&block| block == range.start) {
                pages.free_zeroed_raw(all.swap_remove(at), Order::BLOCK).unwrap();
            }
        });
        assert_eq!(emptied.err(), Some(AllocError::OutOfMemory));
        all.into_iter().for_each(|block| pages.free_zeroed_raw(block, Order::BLOCK).unwrap());
    }),
    ("blocks in a row", 0, |machine, manager| {
        let run = manager.pages().alloc_contig(Gfp::USER.for_zeroes(), 3, 1).unwrap().into_raw();
        (0..3).for_each(|at| write_to(machine, run.start.add(at * 512), Order::BLOCK));
        manager.pages().free_contig_raw(run.start, 3).unwrap();
    }),
];

#[test]
fn frames_in_a_row_and_by_number() {
    let policy = config(FolioPolicy::default());
    for case in EXACT {
        check(Ground::Pieces, &HostedConfig::new(32 * MIB), &policy, &[case]);
    }
    for case in WHOLE {
        check(Ground::Blocks, &HostedConfig::new(64 * MIB), &policy, &[case]);
    }
}

/// Memory that is removed and comes back. What is added without the promise of zeroes has no mark.
const PLUG: [Case; 3] = [
    ("removed and added as zeroes", 0, |_, manager| {
        let range = removed(manager);
        manager.pages().add_memory_raw(range, true).unwrap();
    }),
    ("removed and added as it is", 512, |_, manager| {
        let range = removed(manager);
        manager.pages().add_memory_raw(range, false).unwrap();
    }),
    ("removed, stored to, cleared and added", 0, |machine, manager| {
        let range = removed(manager);
        write_to(machine, range.start, Order::BLOCK);
        manager.pages().clear_extent_raw(&Extent::new(range, TouchHint::Later)).unwrap();
        manager.pages().add_memory_raw(range, true).unwrap();
    }),
];

/// Removes a block that is free.
fn removed(manager: &Manager<'_>) -> FrameRange {
    let block = take(manager, Gfp::USER, Order::BLOCK).unwrap();
    manager.pages().free_zeroed_raw(block, Order::BLOCK).unwrap();
    let range = FrameRange::folio(block, Order::BLOCK);
    manager.remove_memory(range).unwrap();
    range
}

#[test]
fn memory_that_comes_and_goes() {
    check(Ground::Blocks, &HostedConfig::new(64 * MIB), &config(FolioPolicy::default()), &PLUG);
}
