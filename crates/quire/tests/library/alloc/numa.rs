//! Which nodes a request is served from, under every policy.

use hosted::raw::RawPages;
use hosted::{Hosted, HostedConfig, MemoryRange as Range};
use quire::addr::{Frame, FrameRange, Order};
use quire::cpu::CpuId;
use quire::error::{AllocError, InitError};
use quire::page_alloc::{AllocatorConfig, Gfp, NodePolicy, NodeSet, PageAllocator, Urgency};
use quire::stats::Stat;
use testkit::{order, ranges_of};

const MIB: u64 = 1 << 20;
const NODE: u64 = 64 * MIB;

/// Runs `test` as CPU `cpu` of a machine with 64 MiB on each of `with_memory`'s nodes.
fn on_nodes(
    with_memory: &[u8],
    cpus: &[u8],
    distances: &[&[u8]],
    cpu: u32,
    test: impl FnOnce(&PageAllocator<'_, Hosted>),
) {
    let ranges = with_memory.iter().map(|&node| Range::new(u64::from(node) * NODE, NODE).on_node(node));
    let machine = HostedConfig::new(MIB)
        .with_ranges(ranges.collect())
        .with_cpus(cpus.len())
        .with_nodes(cpus.to_vec())
        .with_distances(distances.iter().map(|row| row.to_vec()).collect())
        .build()
        .unwrap();
    machine.run_on(CpuId(cpu), || {
        let allocator =
            hosted::raw::page_allocator(&machine, &ranges_of(&machine), AllocatorConfig::default()).unwrap();
        test(&allocator);
        allocator.lists().drain_local();
        allocator.validate().unwrap();
    });
}

fn node_of(frame: Frame) -> u8 {
    (frame.addr().0 / NODE) as u8
}

/// The nodes that serve requests, in order, until memory is out.
fn until_out(allocator: &PageAllocator<'_, Hosted>, gfp: Gfp, order: Order) -> Vec<u8> {
    let mut seen = Vec::new();
    let end = loop {
        match allocator.alloc_raw(gfp, order) {
            Ok(frame) if seen.last() == Some(&node_of(frame)) => {}
            Ok(frame) => seen.push(node_of(frame)),
            Err(error) => break error,
        }
    };
    assert_eq!(end, AllocError::OutOfMemory);
    seen
}

#[test]
fn equal_distances_go_round_from_the_node_on() {
    for (start, want) in [(0, [0, 1, 2]), (1, [1, 2, 0]), (2, [2, 0, 1])] {
        on_nodes(&[0, 1, 2], &[start], &[], 0, |allocator| {
            assert_eq!(until_out(allocator, Gfp::USER, Order::BLOCK), want);
        });
        on_nodes(&[0, 1, 2], &[0], &[], 0, |allocator| {
            assert_eq!(until_out(allocator, Gfp::USER.on_node(start), order(4)), want);
        });
    }
}

#[test]
fn nearer_nodes_come_first() {
    let distances: &[&[u8]] = &[&[10, 40, 20, 30], &[40, 10, 30, 20], &[20, 30, 10, 40], &[30, 20, 40, 10]];
    for (start, want) in [(0, [0, 2, 3, 1]), (1, [1, 3, 2, 0]), (3, [3, 1, 0, 2])] {
        on_nodes(&[0, 1, 2, 3], &[0, start], distances, 1, |allocator| {
            assert_eq!(until_out(allocator, Gfp::USER, order(9)), want, "from node {start}");
        });
    }
}

#[test]
fn a_bound_request_never_leaves_its_nodes() {
    let distances: &[&[u8]] = &[&[10, 20, 30, 40], &[20, 10, 15, 30]];
    for number in [0, 3, 6, 9, 10] {
        on_nodes(&[0, 1, 2, 3], &[1], distances, 0, |allocator| {
            let bound = Gfp::USER.from_nodes(NodePolicy::Bind(NodeSet::of(&[0, 3, 2])));
            assert_eq!(until_out(allocator, bound, order(number)), [2, 0, 3], "order {number}");
            let elsewhere = allocator.alloc_raw(Gfp::USER, order(number)).unwrap();
            assert_eq!(node_of(elsewhere), 1);
        });
    }
}

#[test]
fn preferred_nodes_come_before_all_others() {
    on_nodes(&[0, 1, 2, 3], &[2], &[], 0, |allocator| {
        let gfp = Gfp::USER.from_nodes(NodePolicy::PreferredMany(NodeSet::of(&[1, 3])));
        assert_eq!(until_out(allocator, gfp, Order::BLOCK), [3, 1, 2, 0]);
        let missing = Gfp::USER.from_nodes(NodePolicy::PreferredMany(NodeSet::one(9)));
        assert_eq!(allocator.alloc_raw(missing, Order::FRAME), Err(AllocError::BadNode));
    });
}

#[test]
fn interleaved_requests_take_turns_and_leave_the_set_last() {
    on_nodes(&[0, 1, 2, 3], &[0], &[], 0, |allocator| {
        let set = NodeSet::of(&[1, 3]);
        let gfp = Gfp::USER.from_nodes(NodePolicy::Interleave(set));
        let take = || node_of(allocator.alloc_raw(gfp, Order::FRAME).unwrap());
        let turns: Vec<u8> = (0..100).map(|_| take()).collect();
        assert!(turns.windows(2).all(|pair| pair[0] != pair[1]), "{turns:?}");
        assert!(turns.iter().all(|&node| set.contains(node)));
        let seen = until_out(allocator, gfp, Order::BLOCK);
        let outside = seen.iter().position(|&node| !set.contains(node)).expect("falls back beyond the set");
        assert!(seen[outside..].iter().all(|&node| !set.contains(node)), "the set comes first: {seen:?}");
        assert!(seen.contains(&0) && seen.contains(&2), "{seen:?}");
    });
}

/// A request that finds no free block empties one on the node whose turn it was: it takes no second turn.
#[test]
fn interleaved_requests_that_empty_a_block_take_one_turn_each() {
    on_nodes(&[0, 1, 2], &[0], &[], 0, |allocator| {
        let all = Gfp { urgency: Urgency::Reserve, ..Gfp::USER };
        let frames: Vec<Frame> = std::iter::from_fn(|| allocator.alloc_raw(all, Order::FRAME).ok()).collect();
        // One frame of each block stays in use, held by an owner that can move it.
        let (stay, go): (Vec<Frame>, Vec<Frame>) =
            frames.into_iter().partition(|frame| frame.index_in_block() == 100);
        go.iter().for_each(|&frame| allocator.free_raw(frame, Order::FRAME).unwrap());
        allocator.lists().drain_local();
        stay.iter().for_each(|&frame| allocator.frames().hold(FrameRange::new(frame, 1)));
        let move_out = |range: FrameRange| {
            let inside = stay.iter().filter(|&&frame| range.contains(frame));
            inside.for_each(|&frame| _ = allocator.release_raw(FrameRange::new(frame, 1)));
        };
        let gfp = Gfp::USER.from_nodes(NodePolicy::Interleave(NodeSet::first(3)));
        let take = || node_of(allocator.alloc_contig_moving(gfp, 1, 1, move_out).unwrap().into_raw().start);
        let turns: Vec<u8> = (0..8).map(|_| take()).collect();
        assert!(turns.windows(2).all(|pair| (pair[0] + 1) % 3 == pair[1]), "{turns:?}");
    });
}

#[test]
fn an_interleaved_bulk_request_is_shared_among_its_nodes() {
    on_nodes(&[0, 1, 2, 3], &[0], &[], 0, |allocator| {
        let gfp = Gfp::USER.from_nodes(NodePolicy::Interleave(NodeSet::of(&[0, 1, 3])));
        for count in [1, 2, 3, 100, 1000] {
            let mut frames = vec![Frame(0); count];
            assert_eq!(allocator.alloc_bulk_raw(gfp, Order::FRAME, &mut frames), count);
            let of = |node| frames.iter().filter(|&&frame| node_of(frame) == node).count();
            let shares = [of(0), of(1), of(3)];
            assert_eq!(shares.iter().sum::<usize>(), count);
            assert!(shares.iter().all(|&share| share.abs_diff(count / 3) <= 1), "{count}: {shares:?}");
            allocator.free_bulk_raw(Order::FRAME, &frames).unwrap();
        }
        allocator.validate().unwrap();
    });
}

#[test]
fn every_cpu_takes_turns_of_its_own() {
    let machine = HostedConfig::new(128 * MIB)
        .with_ranges(vec![Range::new(0, NODE), Range::new(NODE, NODE).on_node(1)])
        .with_cpus(2)
        .build()
        .unwrap();
    let new =
        || hosted::raw::page_allocator(&machine, &ranges_of(&machine), AllocatorConfig::default()).unwrap();
    let allocator = machine.run_on(CpuId(0), new);
    let gfp = Gfp::KERNEL.from_nodes(NodePolicy::Interleave(NodeSet::first(2)));
    let take = |cpu| machine.run_on(CpuId(cpu), || node_of(allocator.alloc_raw(gfp, Order::FRAME).unwrap()));
    let (first, other) = (take(0), take(1));
    for _ in 0..10 {
        assert_ne!(take(0), first);
        assert_eq!(take(0), first);
        assert_ne!(take(1), other);
        assert_eq!(take(1), other);
    }
}

#[test]
fn a_node_without_memory_is_served_by_its_neighbours() {
    let distances: &[&[u8]] = &[&[10, 20, 20, 20, 20], &[], &[], &[], &[40, 20, 30, 20, 10]];
    on_nodes(&[0, 2], &[4], distances, 0, |allocator| {
        assert_eq!(allocator.requests().node_count(), 5);
        assert_eq!(node_of(allocator.alloc_raw(Gfp::KERNEL, Order::FRAME).unwrap()), 2);
        let turns = Gfp::USER.from_nodes(NodePolicy::Interleave(NodeSet::of(&[0, 1, 2, 4])));
        let nodes: Vec<u8> =
            (0..4).map(|_| node_of(allocator.alloc_raw(turns, Order::FRAME).unwrap())).collect();
        assert!(nodes == [0, 2, 0, 2] || nodes == [2, 0, 2, 0], "{nodes:?}");
        assert_eq!(until_out(allocator, Gfp::USER.on_node(1), Order::BLOCK), [2, 0]);
    });
}

#[test]
fn nodes_that_do_not_exist_are_refused_by_name() {
    on_nodes(&[0, 2], &[3], &[], 0, |allocator| {
        let sets = [&[][..], &[1], &[3, 1], &[4], &[0, 4], &[0, 15], &[0, 16], &[255]];
        let policies = sets
            .iter()
            .map(|set| NodeSet::of(set))
            .flat_map(|set| [NodePolicy::Bind(set), NodePolicy::Interleave(set)]);
        for nodes in policies.chain([4, 16, 255].map(NodePolicy::Preferred)) {
            for order in [Order::FRAME, order(5), Order::BLOCK] {
                let got = allocator.alloc_raw(Gfp::USER.from_nodes(nodes), order);
                assert_eq!(got, Err(AllocError::BadNode), "{nodes:?}");
            }
            let mut out = [Frame(7); 4];
            assert_eq!(allocator.alloc_bulk_raw(Gfp::USER.from_nodes(nodes), Order::FRAME, &mut out), 0);
            assert_eq!(out, [Frame(7); 4]);
        }
        assert_eq!(node_of(allocator.alloc_raw(Gfp::USER.on_node(3), Order::FRAME).unwrap()), 0);
    });
    let machine = HostedConfig::new(NODE).with_nodes(vec![16]).build().unwrap();
    let refused =
        hosted::raw::page_allocator(&machine, &ranges_of(&machine), AllocatorConfig::default()).err();
    assert_eq!(refused, Some(InitError::BadNode));
}

#[test]
fn statistics_say_where_frames_came_from() {
    let stats = [
        Stat::NumaHit,
        Stat::NumaMiss,
        Stat::NumaForeign,
        Stat::InterleaveHit,
        Stat::NumaLocal,
        Stat::NumaOther,
    ];
    on_nodes(&[0, 1], &[0], &[], 0, |allocator| {
        let counted = || stats.map(|stat| allocator.lists().stat(stat));
        let since = |before: [u64; 6]| {
            let now = counted();
            std::array::from_fn::<u64, 6, _>(|at| now[at] - before[at])
        };
        let before = counted();
        for _ in 0..10 {
            allocator.alloc_raw(Gfp::USER, Order::FRAME).unwrap();
        }
        assert_eq!(since(before), [10, 0, 0, 0, 10, 0], "local");
        let before = counted();
        allocator.alloc_raw(Gfp::USER.on_node(1), order(2)).unwrap();
        assert_eq!(since(before), [4, 0, 0, 0, 0, 4], "preferred elsewhere");
        let before = counted();
        let turns = Gfp::USER.from_nodes(NodePolicy::Interleave(NodeSet::first(2)));
        (0..6).for_each(|_| assert!(allocator.alloc_raw(turns, Order::FRAME).is_ok()));
        assert_eq!(since(before), [6, 0, 0, 6, 3, 3], "interleaved");
        let bound = Gfp::USER.from_nodes(NodePolicy::Bind(NodeSet::one(1)));
        while allocator.alloc_raw(bound, Order::BLOCK).is_ok() {}
        let before = counted();
        allocator.alloc_raw(Gfp::USER.on_node(1), Order::BLOCK).unwrap();
        assert_eq!(since(before), [0, 512, 512, 0, 512, 0], "preferred elsewhere, served here");
        let before = counted();
        let mut out = [Frame(0); 100];
        assert_eq!(allocator.alloc_bulk_raw(Gfp::USER, Order::FRAME, &mut out), 100);
        assert_eq!(since(before), [100, 0, 0, 0, 100, 0], "bulk");
    });
}
