use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::sync_channel;

use super::lists::TOP;
use super::{BATCH, BLOCK, Cpu, Frames, HIGH};

fn owner(cpu: &Cpu, frame: u32) -> u8 {
    cpu.shared.owner(frame).load(Relaxed)
}

fn stored(cpu: &Cpu) -> u32 {
    cpu.shared.store.lock().frames()
}

fn two(blocks: u32) -> [Cpu; 2] {
    Cpu::all(blocks, 2).try_into().unwrap_or_else(|_| panic!("two"))
}

fn all_of(cpu: &mut Cpu) -> Vec<u32> {
    std::iter::from_fn(|| cpu.take::<0>()).collect()
}

/// A frame returns to the CPU that owns its block, and is the next one that it finds when its lists are
/// empty.
#[test]
fn a_frame_goes_back_to_the_owner_whichever_cpu_frees_it() {
    let [mut one, mut other] = two(4);
    let [first, second] = [&mut one, &mut other].map(|cpu| cpu.take::<0>().unwrap());
    assert_ne!(first / BLOCK, second / BLOCK);
    assert_eq!((owner(&one, first), owner(&one, second)), (1, 2));
    let of_block: Vec<u32> = (1..BLOCK).map(|_| one.take::<0>().unwrap()).collect();
    assert!(of_block.iter().all(|frame| frame / BLOCK == first / BLOCK));
    other.give::<0>(first);
    assert_eq!([&one, &other].map(|cpu| cpu.own.lists.frames()), [0, BLOCK - 1]);
    assert_eq!(one.take::<0>(), Some(first));
}

/// What a CPU takes, another frees meanwhile: no frame is in use twice, and all come back.
#[test]
fn frames_that_another_cpu_frees_come_back_once() {
    let blocks = 16;
    let [mut taker, mut giver] = two(blocks);
    let (sender, receiver) = sync_channel::<u32>(1000);
    let free = std::sync::Mutex::new((0..blocks * BLOCK).collect::<BTreeSet<u32>>());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..100_000 {
                let frame = taker.take::<0>().expect("one thousand are in use");
                assert!(free.lock().unwrap().remove(&frame), "{frame} is in use");
                sender.send(frame).unwrap();
            }
            drop(sender);
        });
        for frame in receiver {
            assert!(free.lock().unwrap().insert(frame));
            giver.give::<0>(frame);
        }
    });
    assert_eq!(giver.own.lists.frames(), 0, "none is the freeing CPU's");
    assert_eq!(all_of(&mut taker).into_iter().collect::<BTreeSet<u32>>().len() as u32, blocks * BLOCK);
}

/// A drain takes pieces by their order, so those of several blocks by turns: each block is remembered once.
#[test]
fn a_block_of_which_pieces_went_to_the_store_is_remembered_once() {
    let mut cpu = two(16).into_iter().next().unwrap();
    let all = all_of(&mut cpu);
    all.iter().filter(|frame| *frame % 2 == 0).for_each(|&frame| cpu.give::<0>(frame));
    let given = &cpu.own.given;
    assert!(given.len() > 1);
    assert_eq!(given.iter().collect::<BTreeSet<_>>().len(), given.len());
}

/// All frames of many blocks, taken by one CPU and freed by another in an order that leaves no neighbours
/// together, come back whole; a block that is whole in the store has no owner.
#[test]
fn what_is_drained_is_put_together() {
    let blocks = 16;
    let [mut one, mut other] = two(blocks);
    let all = all_of(&mut one);
    let mut sorted = all.clone();
    sorted.sort_unstable();
    assert!(sorted.iter().copied().eq(0..blocks * BLOCK), "each frame once");
    assert_eq!((one.take::<0>(), other.take::<0>()), (None, None));
    let half = |odd: bool| all.iter().filter(move |frame| (*frame % 2 == 1) == odd);
    half(true).chain(half(false)).for_each(|&frame| other.give::<0>(frame));
    assert_eq!((other.own.lists.frames(), one.own.lists.frames()), (0, 0));
    // The owner's own call takes them, and its lists keep no more than they may.
    let last = one.take::<0>().unwrap();
    one.give::<0>(last);
    let (held, stored_now) = (one.own.lists.frames(), stored(&one));
    assert_eq!(held + stored_now, blocks * BLOCK);
    assert!(held <= HIGH, "{held}");
    let mut whole: Vec<u32> = std::iter::from_fn(|| one.take::<TOP>()).collect();
    // The request that found no block brought the pieces of the CPU's blocks back from the store, beside
    // those that it held.
    assert_eq!(stored(&one), 0);
    let shared = std::sync::Arc::clone(&one.shared);
    (0..TOP).for_each(|order| one.own.lists.merge(&shared.links, order));
    whole.extend(std::iter::from_fn(|| one.take::<TOP>()));
    assert_eq!(whole.len() as u32, blocks);
    whole.iter().for_each(|&frame| one.give::<TOP>(frame));
    let without = shared.owners.iter().filter(|owner| owner.load(Relaxed) == 0).count() as u32;
    assert_eq!(without * BLOCK, stored(&one));
}

/// A CPU that finds no block takes pieces of others' blocks from the store, and gives them back to the owner.
#[test]
fn a_cpu_without_blocks_uses_pieces_of_others() {
    let [mut one, mut other] = two(2 * HIGH / BLOCK);
    let all = all_of(&mut one);
    assert_eq!(other.take::<0>(), None);
    all.iter().filter(|frame| *frame % 2 == 0).for_each(|&frame| one.give::<0>(frame));
    assert_eq!(stored(&one), 0, "as many as the lists may hold");
    assert_eq!(other.take::<0>(), None, "they are the owner's");
    // One more, whose buddy is there: the larger of the pieces go to the store.
    one.give::<0>(*all.iter().find(|frame| *frame % 2 == 1).unwrap());
    assert!(stored(&one) > BATCH);
    let taken = other.take::<0>().unwrap();
    assert_eq!(owner(&other, taken), 1);
    let before = one.own.lists.frames();
    other.give::<0>(taken);
    assert!(one.shared.absorb(&mut one.own, 0));
    assert_eq!(one.own.lists.frames(), before + 1);
}
