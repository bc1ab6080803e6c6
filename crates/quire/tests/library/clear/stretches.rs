//! Extents are cleared in bounded stretches, the neighbourhood of the awaited frame last; a dying task stops
//! in between.

use hosted::raw::RawClearer;
use hosted::{Hosted, HostedConfig};
use quire::addr::{Frame, FrameRange};
use quire::arch::{ClearKernel, CopyKernel, Feature};
use quire::clear::{ClearPolicy, Clearer, Extent, threads_class};
use quire::cpu::CpuId;
use quire::error::Cancelled;
use quire::limits::{CLEAR_NEAR_BYTES, CLEAR_NEAR_SHARE, CLEAR_STRETCH_BYTES};
use quire::platform::{FramePlatform, TouchHint};

use crate::watched::{Event, Watched};
use testkit::seed;

const MIB: u64 = 1 << 20;
const STRETCH: u64 = CLEAR_STRETCH_BYTES / 4096;
/// Frames of the neighbourhood in an extent of 2 MiB.
const NEAR: u64 = 512 / CLEAR_NEAR_SHARE;
const _: () = assert!(NEAR * 4096 <= CLEAR_NEAR_BYTES);

/// Runs `test` on a machine of 16 MiB full of ones.
fn on_machine(test: impl FnOnce(&Hosted, &Watched<'_>)) {
    let machine = HostedConfig::new(16 * MIB).build().unwrap();
    machine.run_on(CpuId(0), || {
        // SAFETY: H1: the machine's memory, which this test alone uses.
        unsafe { machine.direct_map(Frame(0).addr()).write_bytes(0xff, (16 * MIB) as usize) };
        test(&machine, &Watched::new(&machine));
    });
}

/// Whether each frame of the machine is all zeroes (`Some(true)`), all ones, or a mixture.
fn contents(machine: &Hosted) -> Vec<Option<bool>> {
    let look = |frame: u64| {
        // SAFETY: H1: a frame of the machine, to which nothing is written meanwhile.
        let bytes = unsafe { std::slice::from_raw_parts(machine.direct_map(Frame(frame).addr()), 4096) };
        if bytes == [0; 4096] {
            return Some(true);
        }
        (bytes == [0xff; 4096]).then_some(false)
    };
    (0..16 * MIB / 4096).map(look).collect()
}

fn cleared(events: &[Event]) -> Vec<(FrameRange, ClearKernel)> {
    let clears = events.iter().filter_map(|event| match *event {
        Event::Clear(frames, kernel) => Some((frames, kernel)),
        _ => None,
    });
    clears.collect()
}

/// A policy whose events show the choice: string stores for cached extents, `movnti` for the rest.
fn told_apart(clearer: &Clearer) {
    let mut policy = ClearPolicy::only(ClearKernel::Movnti, CopyKernel::String);
    policy.clear[TouchHint::Soon as usize][threads_class(1)][..5].fill(ClearKernel::String);
    clearer.set_policy(&policy).unwrap();
}

#[test]
fn odd_extents_are_cleared_exactly_in_bounded_stretches() {
    on_machine(|machine, watched| {
        let clearer = Clearer::new(watched, None).unwrap();
        let mut random = fastrand::Rng::with_seed(seed(7));
        for round in 0..if cfg!(miri) { 1 } else { 40 } {
            // SAFETY: H1: the machine's memory, which this test alone uses.
            unsafe { machine.direct_map(Frame(0).addr()).write_bytes(0xff, (16 * MIB) as usize) };
            let start = random.u64(0..2000);
            let frames = FrameRange::new(Frame(start), random.u64(1..=4096 - start));
            let near = (round % 3 > 0).then(|| Frame(start + random.u64(0..frames.count)));
            let extent = Extent { near, ..Extent::new(frames, TouchHint::ALL[round % 3]) };
            clearer.clear_extent_raw(watched, &extent, || false).unwrap();
            let wanted = (0..4096).map(|frame| Some(frames.contains(Frame(frame))));
            assert!(contents(machine).into_iter().eq(wanted), "{extent:?}");
            let (mut since, mut points) = (0, 0);
            for event in watched.events() {
                match event {
                    Event::Clear(frames, _) => since += frames.count,
                    Event::Point => (since, points) = (0, points + 1),
                    _ => {}
                }
                assert!(since <= STRETCH, "{since} frames without a place for others to run");
            }
            assert!(
                points + 1 >= frames.count.div_ceil(STRETCH) && points <= frames.count / (STRETCH / 2) + 2
            );
        }
    });
}

#[test]
fn the_neighbourhood_comes_last_and_stays_cached() {
    on_machine(|_, watched| {
        let clearer = Clearer::new(watched, None).unwrap();
        told_apart(&clearer);
        let folio = FrameRange::new(Frame(512), 512);
        for near in [512, 512 + NEAR - 1, 512 + NEAR, 700, 1008, 1023] {
            let extent = Extent::new(folio, TouchHint::Soon).near(Frame(near));
            clearer.clear_extent_raw(watched, &extent, || false).unwrap();
            let clears = cleared(&watched.events());
            let ((last, kernel), before) = clears.split_last().unwrap();
            assert_eq!((last.start.0, last.count), (near / NEAR * NEAR, NEAR), "{near}");
            assert_eq!(*kernel, ClearKernel::String);
            assert!(before.iter().all(|(frames, kernel)| {
                *kernel == ClearKernel::Movnti && !(frames.start < last.end() && last.start < frames.end())
            }));
            assert_eq!(before.iter().map(|(frames, _)| frames.count).sum::<u64>(), 512 - NEAR);
        }
        // At the edge of an odd extent the neighbourhood is cut off.
        let odd = Extent::new(FrameRange::new(Frame(9), 300), TouchHint::Soon).near(Frame(11));
        assert_eq!(odd.neighbourhood(), FrameRange::new(Frame(10), 2), "a share, aligned to its size");
        let edge = Extent::new(FrameRange::new(Frame(9), 300), TouchHint::Soon).near(Frame(9));
        assert_eq!(edge.neighbourhood(), FrameRange::new(Frame(9), 1), "cut off at the edge");
        let small = Extent::new(FrameRange::new(Frame(10), 15), TouchHint::Soon).near(Frame(12));
        assert_eq!(small.neighbourhood(), FrameRange::new(Frame(10), 6));
        // No task waits, or one waits for a frame outside: no neighbourhood.
        assert_eq!(Extent::new(folio, TouchHint::Soon).neighbourhood().count, 0);
        assert_eq!(Extent::new(folio, TouchHint::Soon).near(Frame(1024)).neighbourhood().count, 0);
    });
}

#[test]
fn the_kernel_is_chosen_by_the_whole_of_which_an_extent_is_a_part() {
    on_machine(|_, watched| {
        let clearer = Clearer::new(watched, None).unwrap();
        let mut policy = ClearPolicy::only(ClearKernel::String, CopyKernel::String);
        policy.clear[TouchHint::Unknown as usize][0][18] = ClearKernel::Movnti;
        clearer.set_policy(&policy).unwrap();
        let kernel_of = |extent: Extent| {
            clearer.clear_extent_raw(watched, &extent, || false).unwrap();
            cleared(&watched.events())[0].1
        };
        let folio = Extent::new(FrameRange::new(Frame(512), 512), TouchHint::Unknown);
        assert_eq!(kernel_of(folio), ClearKernel::String);
        assert_eq!(kernel_of(folio.part_of(1 << 30)), ClearKernel::Movnti);
        // So few frames are better cached, whatever they are a part of.
        let piece = Extent::new(FrameRange::new(Frame(512), 16), TouchHint::Unknown).part_of(1 << 30);
        assert_eq!(kernel_of(piece), ClearKernel::String);
    });
}

/// The number of CPUs that clear at once is counted meanwhile; a small extent neither counts nor reads it.
#[test]
fn cpus_that_clear_at_once_are_counted() {
    on_machine(|_, watched| {
        let clearer = Clearer::new(watched, None).unwrap();
        let mut policy = ClearPolicy::only(ClearKernel::String, CopyKernel::String);
        policy.clear[TouchHint::Later as usize][1].fill(ClearKernel::Movnti);
        clearer.set_policy(&policy).unwrap();
        let large = Extent::new(FrameRange::new(Frame(0), 512), TouchHint::Later);
        let small = FrameRange::new(Frame(600), 32);
        let mut inner = None;
        let another = || {
            if inner.is_none() {
                watched.events();
                clearer
                    .clear_extent_raw(
                        watched,
                        &Extent::new(FrameRange::new(Frame(1024), 512), TouchHint::Later),
                        || false,
                    )
                    .unwrap();
                clearer.clear_raw(watched, small, TouchHint::Later);
                inner = Some(cleared(&watched.events()));
            }
            false
        };
        clearer.clear_extent_raw(watched, &large, another).unwrap();
        let inner = inner.unwrap();
        let (alone, beside) = inner.split_last().unwrap();
        assert_eq!(*alone, (small, ClearKernel::String));
        assert!(beside.iter().all(|(_, kernel)| *kernel == ClearKernel::Movnti), "{beside:?}");
        // The other clear has ended, or was given up: one is left.
        assert!(cleared(&watched.events()).iter().all(|(_, kernel)| *kernel == ClearKernel::String));
        assert_eq!(clearer.clear_extent_raw(watched, &large, || true), Err(Cancelled));
        watched.events();
        clearer.clear_extent_raw(watched, &large, || false).unwrap();
        assert!(cleared(&watched.events()).iter().all(|(_, kernel)| *kernel == ClearKernel::String));
    });
}

#[test]
fn a_clear_is_given_up_between_stretches_and_not_before() {
    on_machine(|machine, watched| {
        let clearer = Clearer::new(watched, None).unwrap();
        let extent = Extent::new(FrameRange::new(Frame(0), 512), TouchHint::Soon).near(Frame(0));
        for lives in 0..4 {
            let mut asked = 0;
            let cancel = || {
                asked += 1;
                asked > lives
            };
            let done = clearer.clear_extent_raw(watched, &extent, cancel);
            let events = watched.events();
            let points = events.iter().filter(|event| **event == Event::Point).count() as u64;
            if done.is_ok() {
                assert!(lives > 2 && points == 3, "{lives}: {points}");
                continue;
            }
            assert_eq!((done, points), (Err(Cancelled), lives));
            let frames: u64 = cleared(&events).iter().map(|(frames, _)| frames.count).sum();
            assert!(frames <= (lives + 1) * STRETCH, "it stops where it was told to");
            // The neighbourhood was to be cleared last, and was not reached.
            assert!(contents(machine)[..NEAR as usize].iter().all(|zero| *zero == Some(false)));
        }
    });
}

#[test]
fn runs_are_copied_in_bounded_stretches() {
    on_machine(|machine, watched| {
        let clearer = Clearer::new(watched, None).unwrap();
        let (from, to) = (FrameRange::new(Frame(3), 300), Frame(1000));
        clearer.clear_extent_raw(watched, &Extent::new(from, TouchHint::Soon), || false).unwrap();
        watched.events();
        clearer.copy_extent_raw(watched, from, to, TouchHint::Later, || false).unwrap();
        let target = FrameRange::new(to, 300);
        let wanted =
            (0..4096).map(|frame| Some(from.contains(Frame(frame)) || target.contains(Frame(frame))));
        assert!(contents(machine).into_iter().eq(wanted));
        let mut since = 0;
        for event in watched.events() {
            match event {
                Event::Copy(frames, ..) => since += frames.count,
                Event::Point => since = 0,
                _ => {}
            }
            assert!(since <= STRETCH);
        }
        let mut asked = 0;
        let cancel = || {
            asked += 1;
            asked == 2
        };
        assert_eq!(clearer.copy_extent_raw(watched, from, to, TouchHint::Later, cancel), Err(Cancelled));
    });
}

/// Where vectors are refused, a processor without fast string instructions stores quadwords.
#[test]
fn a_processor_without_fast_strings_does_without_vectors_by_quadwords() {
    let frames = FrameRange::new(Frame(0), 8);
    for lacks in [Feature::Fsrm, Feature::Erms] {
        let machine = HostedConfig::new(16 * MIB).without(lacks).build().unwrap();
        if !machine.features().has(Feature::Avx) {
            continue;
        }
        let (clear, copy) = if machine.features().has(Feature::Erms) {
            (ClearKernel::String, CopyKernel::String)
        } else {
            (ClearKernel::Quadwords, CopyKernel::Quadwords)
        };
        machine.run_on(CpuId(0), || {
            let watched = Watched::new(&machine);
            let clearer = Clearer::new(&watched, None).unwrap();
            clearer.set_policy(&ClearPolicy::only(ClearKernel::Cached, CopyKernel::Cached)).unwrap();
            watched.give_vectors(false);
            clearer.clear_extent_raw(&watched, &Extent::new(frames, TouchHint::Soon), || false).unwrap();
            clearer.copy_raw(&watched, frames, Frame(600), TouchHint::Soon);
            watched.give_vectors(true);
            let events = watched.events();
            assert!(events.contains(&Event::Copy(frames, Frame(600), copy)), "{events:?}");
            assert_eq!(cleared(&events), [(frames, clear)], "{events:?}");
            assert!(contents(&machine)[600..608].iter().all(|zero| *zero == Some(true)));
        });
    }
}

/// Vectors are requested around each stretch; where they are refused, a kernel without them clears it.
#[test]
fn vectors_are_taken_for_a_stretch_and_done_without_where_refused() {
    on_machine(|machine, watched| {
        let clearer = Clearer::new(watched, None).unwrap();
        let frames = FrameRange::new(Frame(0), 300);
        for (kernel, plain) in [(ClearKernel::Nt16, true), (ClearKernel::Cached, false)] {
            if kernel.on(watched.features()).is_err() {
                continue;
            }
            clearer.set_policy(&ClearPolicy::only(kernel, CopyKernel::Nt16)).unwrap();
            clearer.clear_extent_raw(watched, &Extent::new(frames, TouchHint::Later), || false).unwrap();
            let events = watched.events();
            for (at, event) in
                events.iter().enumerate().filter(|(_, event)| matches!(event, Event::Clear(..)))
            {
                let around = (events[at - 1], events[at + 1]);
                assert_eq!(around, (Event::VectorsBegin, Event::VectorsEnd), "{event:?}");
            }
            watched.give_vectors(false);
            clearer.clear_extent_raw(watched, &Extent::new(frames, TouchHint::Later), || false).unwrap();
            clearer.copy_raw(watched, FrameRange::new(Frame(0), 8), Frame(600), TouchHint::Soon);
            watched.give_vectors(true);
            for event in watched.events() {
                match event {
                    Event::Clear(_, used) => assert!(!used.uses_vectors() && used.is_streaming() == plain),
                    Event::Copy(_, _, used) => assert_eq!(used, CopyKernel::Movnti),
                    Event::Point | Event::Fence => {}
                    other => panic!("{other:?}"),
                }
            }
            assert!(contents(machine)[600..608].iter().all(|zero| *zero == Some(true)));
        }
    });
}

/// A machine that does not clear still counts.
#[test]
fn a_machine_that_only_counts_is_left_as_it_is() {
    let machine = HostedConfig { clearing: false, ..HostedConfig::new(4 * MIB) }.build().unwrap();
    machine.run_on(CpuId(0), || {
        let clearer = Clearer::new(&machine, None).unwrap();
        // SAFETY: H1: the machine's memory, which this test alone uses.
        unsafe { machine.direct_map(Frame(0).addr()).write_bytes(0xff, 4 * MIB as usize) };
        let extent = Extent::new(FrameRange::new(Frame(0), 1024), TouchHint::Later);
        clearer.clear_extent_raw(&machine, &extent, || false).unwrap();
        // SAFETY: H1: a byte of the machine's memory, which this test alone uses.
        assert_eq!(unsafe { *machine.direct_map(Frame(5).addr()) }, 0xff);
    });
    assert_eq!(machine.counters().bytes_cleared, 4 * MIB);
}
