//! Frames of one mobility group share blocks, so that other blocks stay whole.

use hosted::raw::RawPages;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hosted::{Hosted, HostedConfig, InterruptPlan};
use quire::addr::{Frame, Order};
use quire::cpu::CpuId;
use quire::page_alloc::{AllocatorConfig, Gfp, Mobility, PageAllocator, Urgency};
use quire::platform::Context;
use quire::stats::Stat;
use testkit::{PATIENCE, order, ranges_of, seed, with_allocator, within};

const MIB: u64 = 1 << 20;

type Allocator<'m> = PageAllocator<'m, Hosted>;

fn with_grouping<R>(on: bool, bytes: u64, test: impl FnOnce(&Allocator<'_>) -> R) -> R {
    let machine = HostedConfig::new(bytes).build().unwrap();
    machine.run_on(CpuId(0), || {
        let config = AllocatorConfig { group_by_mobility: on, ..AllocatorConfig::default() };
        let allocator = hosted::raw::page_allocator(&machine, &ranges_of(&machine), config).unwrap();
        let result = test(&allocator);
        allocator.lists().drain_local();
        allocator.validate().unwrap();
        result
    })
}

fn whole_blocks(allocator: &Allocator<'_>) -> u64 {
    allocator.lists().drain_local();
    allocator.zone_info().map(|zone| zone.whole_blocks).sum()
}

/// Fills `percent` of the machine with short-lived user memory, and allocates long-lived frames of the
/// manager in between. Returns how many blocks hold long-lived frames after each round, and how many blocks
/// are whole when all short-lived memory is free.
fn churn(allocator: &Allocator<'_>, seed: u64, percent: u64) -> (Vec<usize>, u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let most = (allocator.memory_info().free * percent / 100) as usize;
    let (mut short, mut long): (Vec<Frame>, Vec<Frame>) = (Vec::new(), Vec::new());
    let rounds = (0..12)
        .map(|_| {
            for _ in 0..2_000 {
                if rng.u32(..100) < 10 {
                    long.extend(allocator.alloc_raw(Gfp::KERNEL, Order::FRAME).ok());
                }
                if long.len() > LONG_LIVED {
                    allocator.free_raw(long.swap_remove(rng.usize(..long.len())), Order::FRAME).unwrap();
                }
                // A process starts, or one exits and frees most of its memory.
                let wanted = rng.usize(..64).min(most - short.len());
                let before = short.len();
                short.extend((0..wanted).map_while(|_| allocator.alloc_raw(Gfp::USER, Order::FRAME).ok()));
                if short.len() == most || short.len() < before + wanted {
                    for _ in 0..rng.usize(..most / 2) {
                        let at = rng.usize(..short.len());
                        allocator.free_raw(short.swap_remove(at), Order::FRAME).unwrap();
                    }
                }
            }
            long.iter().map(|frame| frame.block()).collect::<BTreeSet<_>>().len()
        })
        .collect();
    short.iter().for_each(|&frame| allocator.free_raw(frame, Order::FRAME).unwrap());
    (rounds, whole_blocks(allocator))
}

const LONG_LIVED: usize = 1_200;

#[test]
fn whole_blocks_stay_whole_under_a_mix() {
    let seed = seed(11);
    println!("QUIRE_SEED={seed}");
    for (percent, most) in [(50, 4), (80, 4), (97, 8)] {
        let run = |on| with_grouping(on, 64 * MIB, |allocator| churn(allocator, seed, percent));
        let (grouped, mixed) = (run(true), run(false));
        println!("{percent} %: blocks with long-lived frames {:?}, then {} whole", grouped.0, grouped.1);
        println!("   without groups {:?}, then {} whole", mixed.0, mixed.1);
        assert!(grouped.0.iter().all(|&blocks| blocks <= most), "{percent} %: {:?}", grouped.0);
        assert!(grouped.1 > mixed.1, "{percent} %: {} whole, without groups {}", grouped.1, mixed.1);
    }
}

/// Allocates everything: the odd block at the start of memory as unmovable, one block for each of `groups`,
/// and the rest as movable. Returns the frames of the groups' blocks, in ascending order.
fn fill(allocator: &Allocator<'_>, groups: &[Mobility]) -> Vec<Vec<Frame>> {
    let take = |mobility, count: u64| {
        let gfp = Gfp { mobility, urgency: Urgency::Reserve, ..Gfp::KERNEL };
        let mut frames = vec![Frame(0); count as usize];
        let got = allocator.alloc_bulk_raw(gfp, Order::FRAME, &mut frames);
        frames.truncate(got);
        frames.sort_unstable();
        frames
    };
    let odd = allocator.memory_info().free % 512;
    assert_eq!(take(Mobility::Unmovable, odd).len() as u64, odd);
    let blocks: Vec<Vec<Frame>> = groups.iter().map(|&mobility| take(mobility, 512)).collect();
    for frames in &blocks {
        assert!(frames.len() == 512 && frames[0].block() == frames[503].block(), "one block for each");
    }
    take(Mobility::Movable, u64::MAX >> 44);
    assert_eq!(allocator.memory_info().free, 0);
    blocks
}

/// The block that serves the next frame of a group.
fn next_block(allocator: &Allocator<'_>, mobility: Mobility) -> u32 {
    let gfp = Gfp { mobility, urgency: Urgency::Reserve, ..Gfp::KERNEL };
    allocator.alloc_raw(gfp, Order::FRAME).unwrap().block().0
}

#[test]
fn strangers_go_to_the_better_group_of_equally_free_blocks() {
    use Mobility::{Movable, Reclaimable, Unmovable};
    for (stranger, better, other) in [
        (Unmovable, Reclaimable, Movable),
        (Movable, Reclaimable, Unmovable),
        (Reclaimable, Unmovable, Movable),
    ] {
        for groups in [[better, other], [other, better]] {
            with_grouping(true, 16 * MIB, |allocator| {
                let blocks = fill(allocator, &groups);
                for frames in &blocks {
                    allocator.free_bulk_raw(Order::FRAME, &frames[100..200]).unwrap();
                }
                let at = groups.iter().position(|&group| group == better).unwrap();
                assert_eq!(next_block(allocator, stranger), blocks[at][0].block().0, "{stranger:?}");
                assert_eq!(allocator.lists().stat(Stat::MobilityChange), 0, "too little of it was free");
            });
        }
    }
}

#[test]
fn strangers_take_the_emptiest_block_and_stay_together() {
    with_grouping(true, 16 * MIB, |allocator| {
        let blocks = fill(allocator, &[Mobility::Movable, Mobility::Reclaimable, Mobility::Movable]);
        // Nearly half, in singles; many in a row, but less than half of the block; more than half.
        let singles: Vec<Frame> = blocks[0].iter().copied().step_by(2).take(250).collect();
        allocator.free_bulk_raw(Order::FRAME, &singles).unwrap();
        allocator.free_bulk_raw(Order::FRAME, &blocks[1][120..248]).unwrap();
        allocator.free_bulk_raw(Order::FRAME, &blocks[2][240..512]).unwrap();
        let number = |at: usize| blocks[at][0].block().0;
        assert_eq!(next_block(allocator, Mobility::Unmovable), number(2));
        assert_eq!(allocator.lists().stat(Stat::MobilityChange), 1, "the block changes over");
        let taken: Vec<u32> = (1..272).map(|_| next_block(allocator, Mobility::Unmovable)).collect();
        assert!(taken.iter().all(|&block| block == number(2)), "as long as it has room");
        let mut others = std::iter::repeat_with(|| next_block(allocator, Mobility::Unmovable));
        let singles = others.by_ref().take_while(|&block| block == number(0)).count();
        assert_eq!(singles, 250, "the area has unmovable frames, so movable ones make way first");
        assert_eq!(allocator.lists().stat(Stat::MobilityChange), 2, "that block changes over too");
        assert_eq!(next_block(allocator, Mobility::Movable), number(1), "its first owners went elsewhere");
        assert_eq!(others.next(), Some(number(1)));
        assert_eq!(allocator.lists().stat(Stat::MobilityChange), 2, "less than half of it was free");
        allocator.validate().unwrap();
    });
}

#[test]
fn a_free_block_is_broken_before_another_group_is_touched() {
    with_grouping(true, 64 * MIB, |allocator| {
        // Movable blocks with many free frames, and the last whole one.
        let gfp = Gfp { urgency: Urgency::Reserve, ..Gfp::USER };
        let mut frames = vec![Frame(0); 30 * 512];
        assert_eq!(allocator.alloc_bulk_raw(gfp, Order::FRAME, &mut frames), 30 * 512);
        let most: Vec<Frame> = frames.iter().copied().filter(|frame| frame.index_in_block() != 100).collect();
        allocator.free_bulk_raw(Order::FRAME, &most).unwrap();
        assert_eq!(whole_blocks(allocator), 1);
        let unmovable: Vec<u32> = (0..900).map(|_| next_block(allocator, Mobility::Unmovable)).collect();
        let strangers =
            unmovable.iter().filter(|&&block| frames.iter().any(|frame| frame.block().0 == block));
        assert_eq!(strangers.count(), 0);
        assert_eq!(whole_blocks(allocator), 0);
    });
}

/// Two CPUs ask for a pair of frames. CPU 0 asks in an interrupt, which is held up at its `round`-th call of
/// the platform until CPU 1, in a task, has its pair or seems to wait. Returns how many calls CPU 0 made,
/// whether CPU 1 waited, and what it got.
fn ask_for_pairs(machine: &Hosted, allocator: &Allocator<'_>, round: u64) -> (u64, bool, Frame) {
    let pair = || allocator.alloc_raw(Gfp::USER, order(1)).ok();
    let give_back = |frame: Frame| allocator.free_raw(frame, order(1)).unwrap();
    let [asked, through, waited] = [const { AtomicBool::new(false) }; 3];
    let hold_up = || {
        asked.store(true, Ordering::SeqCst);
        waited.store(!within(PATIENCE, || through.load(Ordering::SeqCst)), Ordering::SeqCst);
    };
    let ends = machine.spawn_cpus(2, |cpu| {
        if cpu == CpuId(0) {
            let plan = InterruptPlan::Nth(round);
            let ran = machine.interrupt(Context::SoftInterrupt, || {
                machine.interrupt_at_calls(plan, Context::HardInterrupt, hold_up, pair)
            });
            asked.store(true, Ordering::SeqCst);
            // An interrupt does not wait for a lock, so it may find nothing.
            ran.result.inspect(|&frame| give_back(frame));
            return (ran.events, None);
        }
        // The other CPU may have failed.
        within(Duration::from_secs(10), || asked.load(Ordering::SeqCst));
        let got = pair().inspect(|&frame| give_back(frame));
        through.store(true, Ordering::SeqCst);
        (0, got)
    });
    (ends[0].0, waited.into_inner(), ends[1].1.expect("much is free"))
}

/// A task waits while an interrupt of another CPU holds the lock of a shard with blocks of the task's group.
/// It does not take frames of other groups' blocks instead.
#[test]
fn a_shard_that_an_interrupt_elsewhere_has_locked_is_waited_for() {
    let (mut round, mut calls, mut times) = (0, 0, 0);
    while round <= calls {
        with_allocator(HostedConfig::new(16 * MIB).with_cpus(2), |machine, allocator| {
            let take = |mobility, count: u64| {
                let gfp = Gfp { mobility, urgency: Urgency::Reserve, ..Gfp::KERNEL };
                let mut frames = vec![Frame(0); count as usize];
                let got = allocator.alloc_bulk_raw(gfp, Order::FRAME, &mut frames);
                frames.truncate(got);
                frames
            };
            let odd = allocator.memory_info().free % 512;
            take(Mobility::Unmovable, odd);
            // A block of the second CPU's shard; all others are in the first CPU's.
            let stranger = machine.run_on(CpuId(1), || take(Mobility::Unmovable, 512));
            let movable = take(Mobility::Movable, allocator.memory_info().free);
            // Half of each block is free, in pairs.
            let all = stranger.iter().chain(&movable);
            let pairs: Vec<Frame> = all.copied().filter(|frame| frame.0 % 4 < 2).collect();
            allocator.free_bulk_raw(Order::FRAME, &pairs).unwrap();
            machine.spawn_cpus(2, |_| allocator.lists().drain_local());
            let (waited, got);
            (calls, waited, got) = ask_for_pairs(machine, allocator, round);
            assert_ne!(got.block(), stranger[0].block(), "call {round}: movable frames are free");
            times += u64::from(waited);
        });
        round += 1;
    }
    assert!(times > 0, "the interrupt never had the lock");
}
