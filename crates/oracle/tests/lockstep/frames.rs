//! The page allocator and its model in lockstep.

use std::time::Duration;

use fastrand::Rng;
use hosted::FailurePlan;
use oracle::frames::Class::*;
use oracle::frames::FrameOp::*;
use oracle::frames::Place::*;
use oracle::frames::{FrameLockstep, FrameOp, FrameShape, draw_frames};
use oracle::lockstep::{check_list, in_time, seeds};

fn source(ops: &[(usize, FrameOp)]) -> String {
    ops.iter().map(|op| format!("    {op:?},\n")).collect()
}

#[test]
fn allocator_and_model_agree() {
    let mut runs = 0;
    for seed in seeds(Duration::from_secs(3)) {
        let mut rng = Rng::with_seed(seed);
        let shape = FrameShape::new(&mut rng);
        let ops = draw_frames(&mut rng, &shape, 400);
        let label = format!("QUIRE_SEED={seed}");
        let checked = in_time(&label, || check_list(&ops, &|ops| FrameLockstep::check(&shape, ops)));
        if let Err((what, shorter)) = checked {
            panic!("{label} on {shape:?}\nfails: {what}\nshortened:\n{}", source(&shorter));
        }
        runs += 1;
    }
    println!("{runs} machines agreed");
}

#[test]
fn a_refusal_without_a_reason_is_noticed() {
    let shape = FrameShape::of(&[(0, 4096)], 0, 1);
    let request = |class| [(0, Take(class, Here, 3))];
    for class in [Kernel, User, Atomic, Dma32, Reclaimable] {
        assert_eq!(FrameLockstep::check(&shape, &request(class)), Ok(()));
        let refused = FrameLockstep::check_failing(&shape, &request(class), FailurePlan::From(0));
        assert!(refused.is_err(), "{class:?}");
    }
}

#[test]
fn a_free_from_a_frame_where_no_such_folio_can_start_is_refused() {
    let shape = FrameShape::of(&[(0x23e, 512)], 50, 1);
    let ops = [(0, TakeMany(Kernel, Here, 0, 300)), (0, GiveWrong(290, 8)), (0, GiveWrong(271, 8))];
    FrameLockstep::check(&shape, &ops).unwrap();
}

#[test]
fn a_block_that_two_ranges_fill_is_never_whole() {
    let shape = FrameShape::of(&[(0x3aa, 1024), (0x7aa, 512)], 0, 3);
    FrameLockstep::check(&shape, &[(2, TakeMany(User, Only(1), 2, 468))]).unwrap();
}

#[test]
fn a_spare_block_that_is_used_again_is_no_spare_any_more() {
    let shape = FrameShape::of(&[(0, 4096)], 0, 1);
    let once = [(0, TakeMany(Kernel, Here, 0, 1)), (0, GiveMany(0, 1))];
    FrameLockstep::check(&shape, &[once, once, once].concat()).unwrap();
}

#[test]
fn a_free_that_reaches_behind_the_memory_is_refused() {
    let shape = FrameShape::of(&[(0, 512 + 489)], 0, 1);
    let mut ops = vec![(0, TakeMany(Reserve, Here, 0, 1000))];
    ops.extend((0..1000).flat_map(|which| [(0, GiveWrong(which, 1)), (0, GiveWrong(which, 3))]));
    FrameLockstep::check(&shape, &ops).unwrap();
}

/// The first block begins with frames that are no memory, and have no pointer.
#[test]
fn a_part_of_a_folio_in_a_block_that_is_not_all_memory_is_freed() {
    let shape = FrameShape::of(&[(0x1b1, 3072)], 0, 1);
    let ops = [(0, TakeMany(Atomic, Here, 1, 136)), (0, GiveFrames(7, 143)), (0, GiveFrames(0, 5))];
    FrameLockstep::check(&shape, &ops).unwrap();
}

/// Behind the last frame of a machine's memory its block goes on.
#[test]
fn the_last_folio_of_a_machine_ends_with_its_memory() {
    let shape = FrameShape::of(&[(0x200, 1095)], 0, 1);
    let all = (0..1100).map(|at| (0, TakeAt(0, at, 1)));
    let ops: Vec<_> = all.chain((0..1100).map(|_| (0, GiveFrames(0, 1)))).collect();
    FrameLockstep::check(&shape, &ops).unwrap();
}

/// A frame that was used and freed leaves nothing behind that keeps its memory from being removed.
#[test]
fn memory_that_was_used_and_freed_can_be_removed() {
    let mut shape = FrameShape::of(&[(0xff06a, 1497), (0xff800, 1024)], 0, 2);
    (shape.ranges[1].node, shape.ranges[1].zeroed, shape.later) = (1, true, 2);
    shape.cpu_nodes = vec![0, 2];
    let ops = [(0, Add(0)), (1, Take(Reclaimable, Only(2), 0)), (1, Give(0)), (1, Remove(0))];
    FrameLockstep::check(&shape, &ops).unwrap();
}
