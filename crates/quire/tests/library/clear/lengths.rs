//! The length of a stretch: which values are allowed, that it is kept, and which one follows from
//! measurements.

use hosted::HostedConfig;
use hosted::raw::RawClearer;
use hosted::raw::measure_clear;
use quire::addr::{Frame, FrameRange};
use quire::arch::{Caches, ClearKernel, CopyKernel, CpuFeatures};
use quire::clear::{Calibration, ClearPolicy, Clearer, Cost, Extent, MeasuredStretches, STRETCHES, Stretch};
use quire::cpu::CpuId;
use quire::error::KernelError;
use quire::limits::{CLEAR_STRETCH_BYTES, CLEAR_STRETCH_MOST};
use quire::platform::TouchHint;

use crate::watched::{Event, Watched};

const MIB: u64 = 1 << 20;

fn frames(count: u64) -> Stretch {
    Stretch::of(count * 4096).unwrap()
}

#[test]
fn a_stretch_that_cannot_be_is_refused_by_name() {
    for bytes in [0, 1, 4095, 4097, CLEAR_STRETCH_MOST + 4096, u64::MAX] {
        assert_eq!(Stretch::of(bytes), Err(KernelError::BadStretch { bytes }), "{bytes}");
        let said = KernelError::BadStretch { bytes }.to_string();
        assert!(said.contains(&bytes.to_string()) && said.contains("multiple of 4096"), "{said}");
    }
    for bytes in [4096, 3 * 4096, CLEAR_STRETCH_BYTES, CLEAR_STRETCH_MOST] {
        assert_eq!(Stretch::of(bytes).map(Stretch::bytes), Ok(bytes));
    }
    assert_eq!(Stretch::of(CLEAR_STRETCH_BYTES), Ok(Stretch::SUGGESTED));
    assert!(STRETCHES.is_sorted() && STRETCHES[0] == Stretch::SUGGESTED);
    assert!(STRETCHES.iter().all(|&stretch| Stretch::of(stretch.bytes()) == Ok(stretch)));
}

/// Frames of each stretch between two reschedule points.
fn stretches(events: &[Event]) -> Vec<u64> {
    let mut lengths = vec![0];
    for event in events {
        match event {
            Event::Clear(frames, _) | Event::Copy(frames, ..) => *lengths.last_mut().unwrap() += frames.count,
            Event::Point => lengths.push(0),
            _ => {}
        }
    }
    lengths
}

/// Clears and copies pass a reschedule point after each stretch of the policy, from the next call on. Without
/// stretches the platform is not asked either whether the task dies.
#[test]
fn the_stretch_of_the_policy_is_kept_to() {
    let machine = HostedConfig::new(16 * MIB).build().unwrap();
    machine.run_on(CpuId(0), || {
        let watched = Watched::new(&machine);
        let clearer = Clearer::new(&watched, None).unwrap();
        let only = ClearPolicy::only(ClearKernel::String, CopyKernel::String);
        let all = FrameRange::new(Frame(5), 2000);
        let cases = [(frames(1), 1), (frames(16), 16), (frames(100), 100), (frames(512), 512)];
        for (stretch, most) in cases.into_iter().chain([(Stretch::ENDLESS, 2000)]) {
            clearer.set_policy(&only.with_stretch(stretch)).unwrap();
            assert_eq!(clearer.policy().stretch, stretch);
            let wanted = |lengths: Vec<u64>, count: u64| {
                assert_eq!(lengths.iter().sum::<u64>(), count);
                assert_eq!(lengths.len() as u64, count.div_ceil(most), "{stretch}: {lengths:?}");
                assert!(lengths.iter().all(|&length| length <= most), "{stretch}: {lengths:?}");
            };
            let mut asked = 0;
            let cancel = || {
                asked += 1;
                false
            };
            clearer.clear_extent_raw(&watched, &Extent::new(all, TouchHint::Later), cancel).unwrap();
            wanted(stretches(&watched.events()), all.count);
            assert_eq!(asked, all.count.div_ceil(most) - 1);
            clearer
                .copy_extent_raw(
                    &watched,
                    FrameRange::new(Frame(0), 1000),
                    Frame(3000),
                    TouchHint::Later,
                    || false,
                )
                .unwrap();
            wanted(stretches(&watched.events()), 1000);
            // Measurements use the same stretches.
            let scratch = FrameRange::new(Frame(0), 1024);
            measure_clear(&watched, &clearer, ClearKernel::String, 10, scratch, 0).unwrap();
            let cleared = watched.events().into_iter().filter_map(|event| match event {
                Event::Clear(frames, _) => Some(frames.count),
                _ => None,
            });
            assert_eq!(cleared.max(), Some(most.min(1024)), "{stretch}");
        }
        // Calls without reschedule points are not divided.
        clearer.set_policy(&only.with_stretch(frames(1))).unwrap();
        clearer.clear_raw(&watched, FrameRange::new(Frame(0), 128), TouchHint::Later);
        assert_eq!(stretches(&watched.events()), [128]);
    });
}

/// A calibration in which clearing costs 20 us and copying 40 us for each MiB, whatever the kernel.
fn flat() -> Calibration {
    let mut flat = Calibration::empty(Caches { first: 32 << 10, second: MIB, last: 32 * MIB });
    flat.clear.as_flattened_mut().as_flattened_mut().fill(Cost { fill: 20_000, read: 1000 });
    flat.copy.as_flattened_mut().as_flattened_mut().fill(Cost { fill: 40_000, read: 1000 });
    flat
}

fn chosen(calibration: &Calibration) -> Stretch {
    calibration.policy(CpuFeatures::detect()).stretch
}

/// The same with these costs of large extents; the last class of threads was not measured.
fn with(stretches: [[u32; STRETCHES.len()]; 2]) -> Calibration {
    let measured: MeasuredStretches = [stretches[0], stretches[1], [0; STRETCHES.len()]];
    Calibration { stretches: measured, ..flat() }
}

#[test]
fn the_shortest_stretch_that_is_worth_it_is_chosen() {
    assert_eq!(chosen(&flat()), Stretch::SUGGESTED, "nothing measured");
    // No length is slower.
    let even = [10_000; 5];
    assert_eq!(chosen(&with([even, even])), STRETCHES[0]);
    // 1 MiB is 2 % faster; longer stretches are faster only within the noise.
    let faster = [10_000, 9_800, 9_790, 9_790, 9_790];
    assert_eq!(chosen(&with([faster, faster])), STRETCHES[1]);
    // The cost with two threads counts too.
    assert_eq!(chosen(&with([even, [12_000, 10_000, 10_000, 10_000, 10_000]])), STRETCHES[1]);
}

#[test]
fn a_stretch_that_takes_too_long_is_not_chosen() {
    // 2 MiB would be far faster, but takes 36 us: more than a third of 100 us.
    let slow = [30_000, 25_000, 18_000, 10_000, 9_000];
    assert_eq!(chosen(&with([slow, slow])), STRETCHES[1]);
    // On two CPUs 1 MiB takes 34 us, on one 20 us.
    let alone = [30_000, 20_000, 20_000, 20_000, 20_000];
    assert_eq!(chosen(&with([alone, [38_000, 34_000, 34_000, 34_000, 34_000]])), STRETCHES[0]);
    // No length is short enough: the suggested one is chosen.
    assert_eq!(chosen(&with([[80_000; 5], [80_000; 5]])), Stretch::SUGGESTED);
    // Copies in stretches of 4 MiB take 160 us, and of 2 MiB 80 us.
    let falling = [9_000, 8_000, 7_000, 6_000, 5_000];
    assert_eq!(chosen(&with([falling, falling])), STRETCHES[2]);
    let mut cheap = with([falling, falling]);
    cheap.copy.as_flattened_mut().as_flattened_mut().fill(Cost { fill: 20_000, read: 1000 });
    assert_eq!(chosen(&cheap), STRETCHES[3], "20 us for each MiB, and 6 us");
    // Costs of a kernel that serves small extents do not decide.
    let mut small = with([falling, falling]);
    let classes = |costs: &mut [Cost; 19]| costs[..5].fill(Cost { fill: 900_000, read: 1000 });
    small.clear.as_flattened_mut().iter_mut().for_each(classes);
    assert_eq!(chosen(&small), STRETCHES[2]);
}
