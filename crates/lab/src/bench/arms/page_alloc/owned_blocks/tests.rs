use std::sync::atomic::Ordering::Relaxed;

use super::lists::TOP;
use super::{BATCH, BLOCK, HIGH, Shared};

fn owner(shared: &Shared, frame: u32) -> u8 {
    shared.owner(frame).load(Relaxed)
}

/// A frame returns to the CPU that owns its block, and is that one's next frame.
#[test]
fn a_frame_goes_back_to_the_owner_whichever_cpu_frees_it() {
    let shared = Shared::new(4, 2);
    let [first, second] = [0, 1].map(|cpu| shared.take(cpu, 0).unwrap());
    assert_ne!(first / BLOCK, second / BLOCK);
    assert_eq!((owner(&shared, first), owner(&shared, second)), (1, 2));
    shared.give(1, first, 0);
    assert_eq!(shared.take(0, 0), Some(first));
    let held = [0, 1].map(|cpu| shared.cpus[cpu].lock().lists.frames());
    assert_eq!(held, [BLOCK - 1; 2]);
}

/// All frames of many blocks, taken by one CPU and freed by another in an order that leaves no neighbours together, come back
/// whole; a block that is whole in the store has no owner.
#[test]
fn what_is_drained_is_put_together() {
    let blocks = 16;
    let shared = Shared::new(blocks, 2);
    let all: Vec<u32> = std::iter::from_fn(|| shared.take(0, 0)).collect();
    let mut sorted = all.clone();
    sorted.sort_unstable();
    assert!(sorted.iter().copied().eq(0..blocks * BLOCK), "each frame once");
    assert_eq!((shared.take(0, 0), shared.take(1, 0)), (None, None));
    let half = |odd: bool| all.iter().filter(move |frame| (*frame % 2 == 1) == odd);
    half(true).chain(half(false)).for_each(|&frame| shared.give(1, frame, 0));
    let (held, stored) = (shared.cpus[0].lock().lists.frames(), shared.store.lock().frames());
    assert_eq!((held + stored, shared.cpus[1].lock().lists.frames()), (blocks * BLOCK, 0));
    assert!(held <= HIGH, "{held}");
    let taken = || std::iter::from_fn(|| shared.take(0, TOP));
    let mut whole: Vec<u32> = taken().collect();
    // The request that found no block brought the pieces of the CPU's blocks back from the store, beside those that it held.
    assert_eq!(shared.store.lock().frames(), 0);
    let mut own = shared.cpus[0].lock();
    (0..TOP).for_each(|order| own.lists.merge(&shared.links, order));
    drop(own);
    whole.extend(taken());
    assert_eq!(whole.len() as u32, blocks);
    whole.iter().for_each(|&frame| shared.give(0, frame, TOP));
    let without =
        (0..blocks).filter(|block| shared.owners[*block as usize].load(Relaxed) == 0).count() as u32;
    assert_eq!(without * BLOCK, shared.store.lock().frames());
}

/// A CPU that finds no block takes pieces of others' blocks from the store, and gives them back to the owner.
#[test]
fn a_cpu_without_blocks_uses_pieces_of_others() {
    let shared = Shared::new(2 * HIGH / BLOCK, 2);
    let all: Vec<u32> = std::iter::from_fn(|| shared.take(0, 0)).collect();
    assert_eq!(shared.take(1, 0), None);
    all.iter().filter(|frame| *frame % 2 == 0).for_each(|&frame| shared.give(0, frame, 0));
    assert_eq!(shared.store.lock().frames(), 0, "as many as the lists may hold");
    assert_eq!(shared.take(1, 0), None, "they are the owner's");
    // One more, whose buddy is there: the larger of the pieces go to the store.
    shared.give(0, *all.iter().find(|frame| *frame % 2 == 1).unwrap(), 0);
    assert!(shared.store.lock().frames() > BATCH);
    let taken = shared.take(1, 0).unwrap();
    assert_eq!(owner(&shared, taken), 1);
    let held = || shared.cpus[0].lock().lists.frames();
    let before = held();
    shared.give(1, taken, 0);
    assert_eq!(held(), before + 1);
}
