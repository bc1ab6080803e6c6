//! Frames: what a wrong allocation or free is called.

use oracle::frames::*;
use quire::addr::{Frame, FrameRange, Order};
use quire::error::FreeError;

fn order(n: u8) -> Order {
    Order::new(n).unwrap()
}

fn model() -> FrameModel {
    FrameModel::new(&[FrameRange::new(Frame(0), 1024), FrameRange::new(Frame(2048), 512)])
}

#[test]
fn a_folio_must_be_aligned_inside_and_alone() {
    let mut model = model();
    assert_eq!(model.allocated(Frame(8), order(3)), Ok(()));
    assert_eq!(model.allocated(Frame(4), order(3)), Err(FrameFault::Misaligned(Frame(4), order(3))));
    assert_eq!(model.allocated(Frame(1024), order(0)), Err(FrameFault::Foreign(Frame(1024), order(0))));
    assert_eq!(model.allocated(Frame(2048), order(10)), Err(FrameFault::Foreign(Frame(2048), order(10))));
    let overlap = |start, n| Err(FrameFault::Overlap(Frame(start), order(n), Frame(8), order(3)));
    assert_eq!(model.allocated(Frame(15), order(0)), overlap(15, 0));
    assert_eq!(model.allocated(Frame(0), order(4)), overlap(0, 4));
    assert_eq!(model.allocated(Frame(8), order(3)), overlap(8, 3));
    assert_eq!(model.allocated(Frame(16), order(4)), Ok(()));
    assert_eq!(model.live(), 24);
}

#[test]
fn every_wrong_free_has_its_name() {
    let mut model = model();
    model.allocated(Frame(8), order(3)).unwrap();
    assert_eq!(model.free(Frame(9), order(0)), Err(FreeError::WrongOrder));
    assert_eq!(model.free(Frame(8), order(2)), Err(FreeError::WrongOrder));
    assert_eq!(model.free(Frame(16), order(0)), Err(FreeError::DoubleFree));
    assert_eq!(model.free(Frame(1500), order(0)), Err(FreeError::NotMemory));
    assert_eq!(model.free(Frame(8), order(3)), Ok(()));
    assert_eq!(model.free(Frame(8), order(3)), Err(FreeError::DoubleFree));
}

#[test]
fn lost_frames_are_seen() {
    let mut model = model();
    model.allocated(Frame(512), order(9)).unwrap();
    let census = Census { free: 1000, cached: 16, used: 512, metadata: 8 };
    assert_eq!(model.check(census), Ok(()));
    let lost = Census { cached: 15, ..census };
    assert_eq!(model.check(lost), Err(FrameFault::NotConserved { sum: 1535, memory: 1536 }));
    let twice = Census { used: 513, free: 999, ..census };
    assert_eq!(model.check(twice), Err(FrameFault::Used { said: 513, live: 512 }));
}
