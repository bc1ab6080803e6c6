//! Memory is moved together, so that whole blocks become free.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hosted::raw::RawPages;
use hosted::{HostedConfig, InterruptPlan, MemoryRange};
use quire::addr::{Frame, FrameRange, Order, VirtAddr};
use quire::page_alloc::{Gfp, NodePolicy, NodeSet};
use quire::stats::Stat;

use testkit::{PATIENCE, held_up, within};

use crate::migrate::contig::{BASE, check, fragment, keep_one_in_each};
use crate::migrate::support::{PAGE, frame_at};
use crate::migrate::world::{MIB, Manager, anonymous, run, store, with_manager};

fn whole_blocks(manager: &Manager<'_>) -> u64 {
    manager.pages().zone_info().map(|zone| zone.whole_blocks).sum()
}

#[test]
fn blocks_that_are_little_used_become_whole() {
    with_manager(HostedConfig::new(128 * MIB), |machine, manager| {
        run(manager, |mm| {
            let (bytes, kept) = (100 * MIB, 16);
            fragment(machine, manager, mm, bytes, kept);
            manager.pages().lists().drain_all();
            let (used, before) = (manager.meminfo().frames.used, whole_blocks(manager));
            let found = manager.compact(NodeSet::ALL);
            assert_eq!(found, whole_blocks(manager) - before);
            // 1600 pages fit into four blocks, and a zone has at most one that is not full for each shard.
            println!("{found} of 50 blocks became whole");
            assert!(found >= 40, "{found} blocks became whole");
            assert!(manager.stat(Stat::CompactIsolated) >= 40 * 32);
            assert_eq!(manager.stat(Stat::ContigAllocSuccess), 0, "nothing was allocated");
            check(machine, mm, bytes, kept);
            manager.validate().unwrap();
            // Descriptors of blocks in pieces are metadata, and there are fewer now.
            assert!(manager.meminfo().frames.used <= used);
            let moved = manager.stat(Stat::PgmigrateSuccess);
            assert_eq!(manager.compact(NodeSet::ALL), 0, "nothing is left to gain");
            let again = manager.stat(Stat::PgmigrateSuccess) - moved;
            assert!(again <= 2 * 512, "{again} pages moved in vain");
            check(machine, mm, bytes, kept);
            // What a request for a range did before each of its blocks was moved for.
            let run = manager.pages().alloc_contig_raw(Gfp::USER, 16, 1).expect("without a move");
            (0..16).for_each(|at| manager.pages().free_raw(run.add(at * 512), Order::BLOCK).unwrap());
        });
    });
}

#[test]
fn blocks_in_which_something_cannot_move_are_left_alone() {
    with_manager(HostedConfig::new(64 * MIB), |_, manager| {
        let kept = keep_one_in_each(manager, 1);
        let (info, before) = (manager.pages().memory_info(), whole_blocks(manager));
        assert_eq!(manager.compact(NodeSet::ALL), 0);
        assert_eq!(manager.stat(Stat::CompactIsolated), 0);
        assert_eq!((manager.pages().memory_info(), whole_blocks(manager)), (info, before));
        manager.validate().unwrap();
        kept.iter().for_each(|&frame| manager.pages().free_raw(frame, Order::FRAME).unwrap());
        // What lists had is found too.
        assert!(manager.compact(NodeSet::ALL) + whole_blocks(manager) > before);
    });
}

/// Whether a frame can move shows only when it is tried.
#[test]
fn blocks_with_one_frame_that_stays_are_given_up_soon() {
    with_manager(HostedConfig::new(128 * MIB), |machine, manager| {
        run(manager, |mm| {
            let (bytes, kept) = (100 * MIB, 2);
            fragment(machine, manager, mm, bytes, kept);
            let (pages, mut blocks) = (manager.pages(), BTreeSet::new());
            pages.lists().drain_all();
            let present = (0..bytes / PAGE).step_by(kept as usize);
            let mut held: Vec<Frame> =
                present.map(|page| frame_at(machine, mm, BASE + page * PAGE)).collect();
            held.retain(|frame| blocks.insert(frame.block()));
            assert!(held.len() >= 50);
            held.iter().for_each(|&frame| pages.frames().hold(FrameRange::new(frame, 1)));
            for _ in 0..2 {
                let moved = manager.stat(Stat::PgmigrateSuccess);
                manager.compact(NodeSet::ALL);
                let moved = manager.stat(Stat::PgmigrateSuccess) - moved;
                println!("{moved} pages moved");
                assert!(moved <= 3 * 512, "{moved} pages moved in vain");
            }
            check(machine, mm, bytes, kept);
            mm.munmap(VirtAddr(BASE), bytes).unwrap();
            held.iter().for_each(|&frame| assert_eq!(pages.release_raw(FrameRange::new(frame, 1)), 1));
        });
    });
}

/// A pool that grows, say, need not wait until a whole zone is compacted.
#[test]
fn a_request_for_a_range_goes_on_between_two_blocks() {
    with_manager(HostedConfig::new(128 * MIB).with_cpus(2), |machine, manager| {
        run(manager, |mm| {
            fragment(machine, manager, mm, 100 * MIB, 16);
            manager.pages().lists().drain_all();
            let rounds = AtomicUsize::new(0);
            let compact = || {
                let move_out = |range| {
                    rounds.fetch_add(1, Ordering::SeqCst);
                    manager.move_out(range);
                };
                manager.pages().compact(NodeSet::ALL, move_out)
            };
            let request = || {
                assert!(within(Duration::from_secs(60), || rounds.load(Ordering::SeqCst) > 0));
                // More blocks than are whole, so that some must be emptied.
                let done = manager.pages().alloc_contig_moving(Gfp::USER, 55, 1, |_| ());
                assert!(done.is_err(), "nothing moves");
                rounds.load(Ordering::SeqCst)
            };
            let held = held_up(machine, InterruptPlan::Every(29), PATIENCE, compact, request);
            let all = rounds.load(Ordering::SeqCst);
            println!("{} of {all} rounds, {} calls", held.second, held.calls);
            assert!(held.in_time && held.second < all, "it waited for {} of {all} rounds", held.second);
            check(machine, mm, 100 * MIB, 16);
            manager.validate().unwrap();
        });
    });
}

/// Blocks that are nearly full have nowhere to go.
#[test]
fn nothing_moves_where_there_is_no_room() {
    with_manager(HostedConfig::new(64 * MIB), |machine, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, 40 * MIB)).unwrap();
            (0..40 * 256).for_each(|page| store(machine, mm, BASE + page * PAGE, page).unwrap());
            manager.pages().lists().drain_all();
            let moved = manager.stat(Stat::PgmigrateSuccess);
            manager.compact(NodeSet::ALL);
            let moved = manager.stat(Stat::PgmigrateSuccess) - moved;
            assert!(moved <= 512, "{moved} pages moved");
            check(machine, mm, 40 * MIB, 1);
        });
    });
}

#[test]
fn a_node_is_compacted_by_itself() {
    let node = |node: u8| MemoryRange::new(u64::from(node) * 64 * MIB, 64 * MIB).on_node(node);
    let machine = HostedConfig::new(MIB).with_ranges(vec![node(0), node(1)]);
    with_manager(machine, |machine, manager| {
        run(manager, |mm| {
            let (bytes, kept) = (40 * MIB, 16);
            let of = |node| Some(NodePolicy::Bind(NodeSet::one(node)));
            let at = |node: u64, page: u64| BASE + node * bytes + page * PAGE;
            mm.mmap(&anonymous(BASE, 2 * bytes)).unwrap();
            for number in 0..2 {
                mm.set_nodes(VirtAddr(at(number.into(), 0)), bytes, of(number)).unwrap();
                let node = u64::from(number);
                (0..bytes / PAGE).for_each(|page| store(machine, mm, at(node, page), page).unwrap());
                for page in (0..bytes / PAGE).filter(|page| page % kept != 0) {
                    let unused = quire::vm::Advice::DontNeed;
                    mm.madvise(VirtAddr(at(node, page)), PAGE, unused).unwrap();
                }
            }
            manager.pages().lists().drain_all();
            let frames = |node| -> Vec<Frame> {
                (0..bytes / PAGE).step_by(16).map(|page| frame_at(machine, mm, at(node, page))).collect()
            };
            let (first, second) = (frames(0), frames(1));
            let found = manager.compact(NodeSet::one(1));
            assert!(found >= 10, "{found} blocks became whole");
            assert!(frames(0) == first, "the other node is as before");
            assert!(frames(1) != second);
            assert!(frames(1).iter().all(|frame| frame.addr().0 >= 64 * MIB), "nothing left its node");
            manager.validate().unwrap();
        });
    });
}
