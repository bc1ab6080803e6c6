//! Folios in use are split: every count stays exact, unmapped parts are free, and everything can become whole
//! again.

use fastrand::Rng;
use hosted::raw::{RawCounts, RawPages};
use hosted::{FailurePlan, Hosted, HostedConfig, InterruptPlan};
use quire::addr::{Frame, FrameRange, Order, PageSize};
use quire::cpu::CpuId;
use quire::error::SplitError;
use quire::page_alloc::{Contents, CountError, Gfp, PageAllocator, Urgency};
use quire::stats::Stat;
use testkit::{PATIENCE, held_up, order, seed, with_allocator};

const MIB: u64 = 1 << 20;

type Allocator<'m> = PageAllocator<'m, Hosted>;

/// A folio or its parts: how many leaves map each frame.
struct Model {
    start: Frame,
    counts: Vec<u32>,
    /// The order of the parts that are one record each; none once it is in small pieces.
    whole: Option<Order>,
}

fn map(allocator: &Allocator<'_>, run: FrameRange) {
    let mut rest = run;
    while let Err(CountError::Prepare { done, at }) = allocator.counts().counter().map(rest) {
        rest = FrameRange::new(rest.start.add(done), rest.count - done);
        allocator.counts().prepare_counts(at).expect("memory");
    }
}

impl Model {
    fn new(allocator: &Allocator<'_>, order: Order) -> Self {
        let start = allocator.alloc_raw(Gfp::USER, order).expect("memory");
        map(allocator, FrameRange::folio(start, order));
        let whole = (order >= Order::BLOCK).then_some(order);
        Self { start, counts: vec![1; order.frames() as usize], whole }
    }

    fn is_unmapped(&self) -> bool {
        self.counts.iter().all(|&count| count == 0)
    }

    /// Frames that the part around `at` loses for good with its present counts.
    fn lost(&self, at: usize) -> u64 {
        match self.whole {
            None => u64::from(self.counts[at] == 0),
            Some(order) => {
                let size = order.frames() as usize;
                let part = &self.counts[at / size * size..][..size];
                if part.iter().all(|&count| count == 0) { order.frames() } else { 0 }
            }
        }
    }

    fn step(&mut self, allocator: &Allocator<'_>, rng: &mut Rng) {
        let at = rng.usize(..self.counts.len());
        if self.counts[at] == 0 {
            return;
        }
        let frame = FrameRange::new(self.start.add(at as u64), 1);
        if rng.u32(..3) == 0 {
            let times = if rng.u32(..40) == 0 { 300 } else { 1 };
            (0..times).for_each(|_| map(allocator, frame));
            self.counts[at] += times;
        } else {
            self.counts[at] -= 1;
            assert_eq!(allocator.counts().counter().unmap_raw(frame), self.lost(at));
        }
    }

    fn unmap_some(&mut self, allocator: &Allocator<'_>, rng: &mut Rng) {
        let count = rng.usize(1..=self.counts.len().min(40));
        let from = rng.usize(..=self.counts.len() - count);
        (from..from + count).for_each(|at| {
            while self.counts[at] > 0 {
                self.counts[at] -= 1;
                let freed =
                    allocator.counts().counter().unmap_raw(FrameRange::new(self.start.add(at as u64), 1));
                assert_eq!(freed, self.lost(at));
            }
        });
    }

    fn split(&mut self, allocator: &Allocator<'_>, to: Order) {
        // Parts that are free may have another owner now; a part that is in use is split.
        let Some(whole) = self.whole.filter(|&whole| to < whole) else { return };
        for part in (0..self.counts.len()).step_by(whole.frames() as usize) {
            let counts = &self.counts[part..][..whole.frames() as usize];
            if counts.iter().all(|&count| count == 0) {
                continue;
            }
            let size = to.frames().max(1) as usize;
            let unmapped = |counts: &[u32]| counts.iter().all(|&count| count == 0);
            let kept: u64 = match to < Order::BLOCK {
                true => counts.iter().filter(|&&count| count > 0).count() as u64,
                false => counts.chunks(size).filter(|counts| !unmapped(counts)).count() as u64 * to.frames(),
            };
            let freed = allocator.split_raw(self.start.add(part as u64), to);
            assert_eq!(freed, Ok(whole.frames() - kept), "{whole:?} to {to:?}");
        }
        self.whole = (to >= Order::BLOCK).then_some(to);
    }

    fn check(&self, allocator: &Allocator<'_>) {
        for (at, &count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            assert_eq!(
                allocator.counts().mapcount(self.start.add(at as u64)),
                u64::from(count),
                "frame {at}"
            );
        }
    }

    fn end(&mut self, allocator: &Allocator<'_>) {
        for at in 0..self.counts.len() {
            while self.counts[at] > 0 {
                self.counts[at] -= 1;
                allocator.counts().counter().unmap_raw(FrameRange::new(self.start.add(at as u64), 1));
            }
        }
    }
}

/// Invariant 5.
#[test]
fn counts_stay_exact_through_splits() {
    let seed = seed(0x5917);
    println!("QUIRE_SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    with_allocator(HostedConfig::new(64 * MIB), |_, allocator| {
        allocator.lists().drain_local();
        let before = allocator.memory_info();
        for round in 0..60 {
            let mut models: Vec<Model> = (0..3)
                .map(|_| Model::new(allocator, order([2, 5, 8, 9, 9, 9, 10, 11][rng.usize(..8)])))
                .collect();
            for _ in 0..rng.usize(..400) {
                let model = &mut models[rng.usize(..3)];
                match rng.u32(..30) {
                    0 => model.unmap_some(allocator, &mut rng),
                    1 if model.whole.is_some() => model.split(allocator, order(rng.u8(..11))),
                    _ => model.step(allocator, &mut rng),
                }
            }
            models.iter().for_each(|model| model.check(allocator));
            allocator.validate().unwrap_or_else(|fault| panic!("round {round}: {fault:?}"));
            models.iter_mut().for_each(|model| model.end(allocator));
            assert!(models.iter().all(Model::is_unmapped));
            assert_eq!(allocator.counts().deferred_splits(), 0, "a folio that is gone waits for nothing");
        }
        allocator.lists().drain_local();
        let after = allocator.memory_info();
        assert_eq!((after.used, after.total), (before.used, before.total));
        assert_eq!(after.metadata, before.metadata, "blocks are whole again");
    });
}

#[test]
fn folios_below_a_block_come_apart_in_place() {
    with_allocator(HostedConfig::new(32 * MIB), |_, allocator| {
        let folio = allocator.alloc_raw(Gfp::USER, order(6)).unwrap();
        assert_eq!(allocator.split_raw(folio.add(1), Order::FRAME), Err(SplitError::NotAFolio));
        assert_eq!(allocator.split_raw(folio, order(4)), Ok(0));
        assert_eq!(allocator.split_raw(folio, order(5)), Ok(0), "smaller already");
        assert_eq!(allocator.split_raw(folio.add(16), Order::FRAME), Ok(0));
        for part in [0, 32, 48] {
            allocator.free_raw(folio.add(part), order(4)).unwrap();
        }
        for frame in 16..32 {
            allocator.free_raw(folio.add(frame), Order::FRAME).unwrap();
        }
        allocator.lists().drain_all();
        assert_eq!(allocator.split_raw(folio, Order::FRAME), Err(SplitError::NotAFolio));
    });
}

#[test]
fn an_unmapped_folio_of_blocks_stays_its_owners() {
    with_allocator(HostedConfig::new(64 * MIB), |_, allocator| {
        let before = allocator.memory_info();
        let folio = allocator.alloc_raw(Gfp::USER, order(11)).unwrap();
        assert_eq!(allocator.split_raw(folio, order(10)), Ok(0));
        assert_eq!(allocator.split_raw(folio, Order::BLOCK), Ok(0));
        assert_eq!(allocator.split_raw(folio, order(3)), Ok(0));
        allocator.validate().unwrap();
        assert_eq!(allocator.memory_info().metadata, before.metadata, "a split needs no memory");
        (0..512).step_by(8).for_each(|at| allocator.free_raw(folio.add(at), order(3)).unwrap());
        allocator.free_raw(folio.add(512), Order::BLOCK).unwrap();
        allocator.free_raw(folio.add(1024), order(10)).unwrap();
        allocator.lists().drain_local();
        assert_eq!(allocator.memory_info(), before);
    });
}

#[test]
fn large_leaves_are_refused_without_a_trace_and_missing_memory_is_not() {
    with_allocator(HostedConfig::new(32 * MIB), |machine, allocator| {
        let folio = allocator.alloc_raw(Gfp::USER, Order::BLOCK).unwrap();
        allocator.counts().counter().map_large(folio, PageSize::Size2M);
        assert_eq!(allocator.split_raw(folio, order(4)), Err(SplitError::InUse));
        map(allocator, FrameRange::folio(folio, Order::BLOCK));
        allocator.counts().counter().unmap_large_raw(folio, PageSize::Size2M, Contents::Unknown);
        machine.set_failures(FailurePlan::From(0));
        allocator.counts().counter().unmap_raw(FrameRange::new(folio.add(64), 8));
        assert_eq!((allocator.counts().mapcount(folio), allocator.counts().deferred_splits()), (1, 1));
        allocator.validate().unwrap();
        allocator.counts().counter().unmap_raw(FrameRange::new(folio.add(500), 3));
        assert_eq!(allocator.split_deferred(1), 11);
        machine.set_failures(FailurePlan::Off);
        assert_eq!(
            (allocator.counts().deferred_splits(), allocator.lists().stat(Stat::ThpSplitPage)),
            (0, 1)
        );
        assert_eq!(allocator.lists().stat(Stat::ThpDeferredSplitPage), 1);
        allocator.validate().unwrap();
        let mapped = allocator.alloc_raw(Gfp::USER, Order::BLOCK).unwrap();
        map(allocator, FrameRange::folio(mapped, Order::BLOCK));
        machine.set_failures(FailurePlan::From(0));
        assert_eq!(allocator.split_raw(mapped, Order::FRAME), Ok(0), "all of it is mapped");
        machine.set_failures(FailurePlan::Off);
        assert_eq!(allocator.counts().counter().unmap_raw(FrameRange::folio(mapped, Order::BLOCK)), 512);
        (0..512).filter(|at| !(64..72).contains(at) && !(500..503).contains(at)).for_each(|at| {
            assert_eq!(allocator.counts().counter().unmap_raw(FrameRange::new(folio.add(at), 1)), 1);
        });
    });
}

#[test]
fn threads_unmap_while_others_split() {
    let config = HostedConfig::new(64 * MIB).with_cpus(3);
    let machine = config.build().unwrap();
    let ranges = testkit::ranges_of(&machine);
    let allocator = machine
        .run_on(CpuId(0), || {
            hosted::raw::page_allocator(&machine, &ranges, quire::page_alloc::AllocatorConfig::default())
        })
        .unwrap();
    let before = allocator.memory_info();
    let first = seed(fastrand::u64(..));
    println!("QUIRE_SEED={first}");
    machine.spawn_cpus(3, |cpu| {
        let mut rng = Rng::with_seed(first.wrapping_add(cpu.0.into()));
        for _ in 0..400 {
            if cpu.0 == 0 {
                allocator.split_deferred(u64::MAX);
                std::thread::yield_now();
                continue;
            }
            let Ok(folio) = allocator.alloc_raw(Gfp::USER, Order::BLOCK) else { continue };
            map(&allocator, FrameRange::folio(folio, Order::BLOCK));
            let mut frames: Vec<u64> = (0..512).collect();
            if rng.bool() {
                rng.shuffle(&mut frames);
            }
            let mut freed = 0;
            for at in frames {
                freed += allocator.counts().counter().unmap_raw(FrameRange::new(folio.add(at), 1));
            }
            assert!(freed <= 512);
        }
        allocator.lists().drain_local();
    });
    machine.run_on(CpuId(0), || {
        allocator.lists().drain_local();
        allocator.validate().unwrap();
    });
    let after = allocator.memory_info();
    assert_eq!((after.used, after.metadata), (before.used, before.metadata));
    assert_eq!(allocator.counts().deferred_splits(), 0);
}

/// A frame goes bad while the only owner of its folio splits it. Either the split finds the mark and is
/// refused, or the mark comes later. The mark is never lost.
#[test]
fn an_unmapped_folio_with_a_mark_stays_whole() {
    for held in [true, false] {
        with_allocator(HostedConfig::new(16 * MIB), |_, allocator| {
            let start = allocator.alloc_raw(Gfp::USER, Order::BLOCK).expect("memory");
            let folio = FrameRange::folio(start, Order::BLOCK);
            // The folio is held from the beginning, or only at the end, so that the check at its free is
            // easy.
            if held {
                allocator.frames().hold(folio);
            }
            allocator.frames().mark_again(start.add(77));
            assert_eq!(allocator.split_raw(start, order(0)), Err(SplitError::InUse));
            assert!(allocator.frames().has_bad(start) && allocator.frames().is_bad(start.add(77)));
            if !held {
                allocator.frames().hold(folio);
            }
            // The bad frame is lost with the folio, and no other frame.
            allocator.release_raw(folio);
            allocator.lists().drain_local();
            assert_eq!(
                (allocator.frames().bad_frames(), allocator.frames().is_bad(start.add(77))),
                (1, true)
            );
        });
    }
}

/// A caller that has only seen that a folio was mapped cannot split it after its memory was handed out again,
/// in any size.
#[test]
fn an_unmapped_folio_is_split_by_its_owner_alone() {
    with_allocator(HostedConfig::new(64 * MIB), |_, allocator| {
        for number in [4, 9, 11] {
            let folio = allocator.alloc_raw(Gfp::USER, order(number)).unwrap();
            assert_eq!(allocator.split_mapped_raw(folio, Order::FRAME), Err(SplitError::NotAFolio));
            allocator.free_raw(folio, order(number)).expect("it is whole");
            let folio = allocator.alloc_raw(Gfp::USER, order(number)).unwrap();
            map(allocator, FrameRange::folio(folio, order(number)));
            assert_eq!(allocator.split_mapped_raw(folio, Order::FRAME), Ok(0));
            allocator.counts().counter().unmap_raw(FrameRange::folio(folio, order(number)));
        }
        allocator.validate().unwrap();
    });
}

/// What another CPU does with a folio of four blocks, or with a part of it, during the split; returns what it
/// holds then.
type Other = fn(&Allocator<'_>, Frame) -> Option<FrameRange>;

/// Other CPUs split a folio of several blocks or its parts at the same time, or hold a part. They find it
/// either as it was or split: no count is lost, and no frame is freed twice.
#[test]
fn a_folio_of_blocks_is_split_by_one_at_a_time() {
    const MAPPED: [(u64, u64); 3] = [(5, 10), (1024, 512), (1536 + 77, 1)];
    let hold: Other = |allocator, folio| {
        let start = folio.add(1024);
        let part = allocator.frames().set_aside(start).map(|order| FrameRange::folio(start, order))?;
        assert_eq!(allocator.counts().counter().unmap_raw(part), 0, "it is held");
        Some(part)
    };
    let others: [(&str, Other); 5] = [
        ("all", |allocator, folio| allocator.split_mapped_raw(folio, Order::FRAME).ok().and(None)),
        ("in blocks", |allocator, folio| allocator.split_mapped_raw(folio, Order::BLOCK).ok().and(None)),
        ("a part", |allocator, folio| {
            allocator.split_mapped_raw(folio.add(1536), Order::FRAME).ok().and(None)
        }),
        ("deferred", |allocator, _| Some(allocator.split_deferred(u64::MAX)).and(None)),
        ("hold", hold),
    ];
    for (name, other) in others {
        for to in [Order::BLOCK, Order::FRAME] {
            with_allocator(HostedConfig::new(64 * MIB).with_cpus(2), |machine, allocator| {
                allocator.lists().drain_local();
                let before = allocator.memory_info();
                let (mut round, mut met) = (0, 0);
                loop {
                    let folio = allocator.alloc_raw(Gfp::USER, order(11)).unwrap();
                    for (at, count) in MAPPED {
                        map(allocator, FrameRange::new(folio.add(at), count));
                    }
                    let split = || _ = allocator.split_raw(folio, to);
                    let plan = InterruptPlan::Nth(round);
                    let held = held_up(machine, plan, PATIENCE, split, || other(allocator, folio));
                    held.second.inspect(|part| _ = allocator.release_raw(*part));
                    allocator.validate().unwrap();
                    for (at, count) in MAPPED {
                        for frame in (at..at + count).map(|at| folio.add(at)) {
                            if allocator.counts().mapcount(frame) == 1 {
                                allocator.counts().counter().unmap_raw(FrameRange::new(frame, 1));
                            }
                        }
                    }
                    while allocator.split_deferred(u64::MAX) > 0 {}
                    machine.spawn_cpus(2, |_| allocator.lists().drain_local());
                    allocator.validate().unwrap();
                    assert_eq!(allocator.memory_info(), before, "{name}, {to:?}, call {round}");
                    (round, met) = (round + 1, met + u64::from(held.in_time));
                    if round > held.calls {
                        break;
                    }
                }
                println!("{name}, {to:?}: {round} moments, met at {met}");
                assert!(met > 0, "{name}, {to:?}");
            });
        }
    }
}

/// One CPU unmaps a leaf of a part of a folio of several blocks, and is held up at every moment. Meanwhile another
/// CPU unmaps the last leaf and allocates the same memory again, or splits the folio. The first CPU frees no
/// memory that is in use by then (invariants 1 and 5).
#[test]
fn a_leaf_of_a_part_keeps_its_folio_until_it_is_counted_down() {
    let unmap = |allocator: &Allocator<'_>, frame| {
        allocator.counts().counter().unmap_raw(FrameRange::new(frame, 1));
    };
    let gfp = Gfp { urgency: Urgency::Reserve, ..Gfp::USER };
    let again: Other = |allocator, folio| {
        allocator.counts().counter().unmap_raw(FrameRange::new(folio.add(1536), 1));
        let gfp = Gfp { urgency: Urgency::Reserve, ..Gfp::USER };
        allocator.alloc_raw(gfp, order(11)).ok().map(|again| FrameRange::folio(again, order(11)))
    };
    let in_blocks: Other = |allocator, folio| allocator.split_mapped_raw(folio, Order::BLOCK).ok().and(None);
    let in_frames: Other = |allocator, folio| allocator.split_mapped_raw(folio, Order::FRAME).ok().and(None);
    for (name, other) in [("in blocks", in_blocks), ("in frames", in_frames), ("again", again)] {
        with_allocator(HostedConfig::new(64 * MIB).with_cpus(2), |machine, allocator| {
            allocator.lists().drain_local();
            // All but one of the folios of this size are in use.
            let all: Vec<Frame> = std::iter::from_fn(|| allocator.alloc_raw(gfp, order(11)).ok()).collect();
            allocator.free_raw(all[0], order(11)).unwrap();
            let before = allocator.memory_info();
            let (mut round, mut met, mut calls) = (0, 0, 0);
            while round <= calls {
                let folio = allocator.alloc_raw(gfp, order(11)).unwrap();
                [512, 1536].iter().for_each(|&at| map(allocator, FrameRange::new(folio.add(at), 1)));
                let (plan, first) = (InterruptPlan::Nth(round), || unmap(allocator, folio.add(512)));
                let held = held_up(machine, plan, PATIENCE, first, || other(allocator, folio));
                allocator.validate().unwrap_or_else(|fault| panic!("{name}, call {round}: {fault:?}"));
                match held.second {
                    Some(again) => allocator.free_raw(again.start, order(11)).unwrap(),
                    None if name == "again" => {}
                    None => unmap(allocator, folio.add(1536)),
                }
                machine.spawn_cpus(2, |_| allocator.lists().drain_local());
                allocator.validate().unwrap();
                assert_eq!(allocator.memory_info(), before, "{name}, call {round}");
                (round, met, calls) = (round + 1, met + u64::from(held.in_time), held.calls);
            }
            println!("{name}: {round} moments, met at {met}");
            assert!(met > 0, "{name}");
            all[1..].iter().for_each(|&folio| allocator.free_raw(folio, order(11)).unwrap());
        });
    }
}

/// The leaf of a part of a folio goes at every moment of the folio's split. No part that is free or mapped as a whole
/// waits for a split of its own then, whichever CPU freed it (invariant 1).
#[test]
fn a_part_without_unmapped_frames_waits_for_no_split() {
    let others = [(Order::BLOCK, 512, 0), (Order::BLOCK, 512, 512), (order(10), 1536, 0)];
    for (to, at, mapped) in others {
        with_allocator(HostedConfig::new(64 * MIB).with_cpus(2), |machine, allocator| {
            allocator.lists().drain_local();
            let before = allocator.memory_info();
            let (mut round, mut met, mut calls) = (0, 0, 0);
            while round <= calls {
                let folio = allocator.alloc_raw(Gfp::USER, order(11)).unwrap();
                let (leaf, first) = (FrameRange::new(folio.add(at), 1), FrameRange::new(folio, mapped));
                [leaf, first].iter().for_each(|&run| map(allocator, run));
                let (plan, split) = (InterruptPlan::Nth(round), || allocator.split_mapped_raw(folio, to));
                let unmap = || allocator.counts().counter().unmap_raw(leaf);
                let held = held_up(machine, plan, PATIENCE, split, unmap);
                assert_eq!(allocator.counts().deferred_splits(), 0, "{to:?}, {mapped}, call {round}");
                allocator.counts().counter().unmap_raw(first);
                machine.spawn_cpus(2, |_| allocator.lists().drain_local());
                allocator.validate().unwrap();
                assert_eq!(allocator.memory_info(), before, "{to:?}, {mapped}, call {round}");
                (round, met, calls) = (round + 1, met + u64::from(held.in_time), held.calls);
            }
            println!("{to:?}, {mapped}: {round} moments, met at {met}");
            assert!(met > 0, "{to:?}, {mapped}");
        });
    }
}
