//! The table of kernels: its suggestions, its choice from measurements, and what it refuses.

use hosted::raw::{measure_clear, measure_copy};
use hosted::{Hosted, HostedConfig};
use quire::addr::{Frame, FrameRange};
use quire::arch::{Caches, ClearKernel, CopyKernel, CpuFeatures, Feature};
use quire::clear::{
    CLASSES, Calibration, ClearPolicy, Clearer, Cost, Stretch, THREADS, bytes_of, class_of, cpus_of,
    threads_class,
};
use quire::cpu::CpuId;
use quire::error::{InitError, KernelError};
use quire::limits::CLEAR_CACHED_BYTES;
use quire::page_alloc::AllocatorConfig;
use quire::platform::{FramePlatform, TouchHint};

use testkit::ranges_of;

const MIB: u64 = 1 << 20;
const CACHES: Caches = Caches { first: 32 << 10, second: MIB, last: 32 * MIB };

fn features(with: &[Feature]) -> CpuFeatures {
    // SAFETY: no kernel of these features is run.
    unsafe { CpuFeatures::assume(with) }
}

#[test]
fn extents_and_cpus_fall_into_classes() {
    assert_eq!([0, 1, 4096, 8191, 8192].map(class_of), [0, 0, 0, 0, 1]);
    assert_eq!((class_of(1 << 30), class_of(5 << 30)), (18, 18));
    assert!((0..CLASSES).all(|class| class_of(bytes_of(class)) == class));
    assert_eq!([0, 1, 2, 3, 4, 99].map(threads_class), [0, 0, 1, 1, 2, 2]);
    assert!((0..THREADS).all(|class| threads_class(cpus_of(class) as u32) == class));
}

/// Small extents stay cached whatever the hint, large ones never; between them the hint and the cache decide.
#[test]
fn the_suggestion_goes_by_hint_extent_and_cpus() {
    let policy = ClearPolicy::suggested(features(&Feature::ALL), CACHES);
    let streams = |hint, cpus, bytes| policy.clear_kernel(hint, cpus, bytes).is_streaming();
    for (hint, limit) in
        [(TouchHint::Soon, 4 * MIB), (TouchHint::Unknown, 4 * MIB), (TouchHint::Later, CLEAR_CACHED_BYTES)]
    {
        for class in 0..CLASSES {
            let bytes = bytes_of(class);
            assert_eq!(streams(hint, 1, bytes), bytes > limit, "{hint:?} {bytes}");
            let shared = (limit / 2).max(CLEAR_CACHED_BYTES);
            assert_eq!(streams(hint, 2, bytes), bytes > shared, "{hint:?} {bytes} by two");
            assert_eq!(policy.copy_kernel(hint, 1, bytes).is_streaming(), bytes > limit);
        }
    }
}

#[test]
fn the_suggestion_falls_to_what_there_is() {
    let far = |with: &[Feature]| {
        ClearPolicy::suggested(features(with), CACHES).clear_kernel(TouchHint::Later, 1, 1 << 30)
    };
    use Feature::{Avx, Avx512, Clzero, Movdir64b, Sse2};
    assert_eq!(far(&Feature::ALL), ClearKernel::Nt64);
    assert_eq!(far(&[Sse2, Avx, Movdir64b]), ClearKernel::Nt32);
    assert_eq!(far(&[Movdir64b, Clzero]), ClearKernel::Movdir64b);
    assert_eq!(far(&[Clzero]), ClearKernel::Clzero);
    assert_eq!(far(&[]), ClearKernel::Movnti);
    let near = |with: &[Feature]| {
        ClearPolicy::suggested(features(with), CACHES).clear_kernel(TouchHint::Soon, 1, 4096)
    };
    assert_eq!(near(&[Avx, Avx512]), ClearKernel::Cached);
    assert_eq!(near(&[Avx, Feature::Erms]), ClearKernel::String);
    assert_eq!(near(&[Feature::Erms]), ClearKernel::String);
    assert_eq!(near(&[Sse2]), ClearKernel::Quadwords);
    assert_eq!(near(&[]), ClearKernel::Quadwords);
    for with in [&[][..], &[Clzero], &[Sse2], &[Sse2, Avx], &Feature::ALL] {
        assert_eq!(ClearPolicy::suggested(features(with), CACHES).check(features(with)), Ok(()));
        let unknown = ClearPolicy::suggested(features(with), Caches::default());
        assert!(
            unknown.clear_kernel(TouchHint::Soon, 1, 64 * MIB).is_streaming(),
            "a cache of unknown size counts as small"
        );
    }
}

/// Copies and clears through the caches choose alike: by string instructions for bytes on a processor with
/// fast ones, else by vectors where they are allowed, else by string instructions for quadwords.
#[test]
fn quadwords_are_for_processors_with_neither_fast_strings_nor_vectors() {
    use Feature::{Avx, Erms, Fsrm};
    for with in [&[][..], &[Fsrm], &[Erms], &[Avx], &[Avx, Erms], &Feature::ALL] {
        for features in [features(with), features(with).without_vectors()] {
            let policy = ClearPolicy::suggested(features, CACHES);
            let chosen =
                (policy.clear_kernel(TouchHint::Soon, 1, 4096), policy.copy_kernel(TouchHint::Soon, 1, 4096));
            let wanted = match (features.has(Erms), features.has(Avx)) {
                (true, _) => (ClearKernel::String, CopyKernel::String),
                (false, true) => (ClearKernel::Cached, CopyKernel::Cached),
                (false, false) => (ClearKernel::Quadwords, CopyKernel::Quadwords),
            };
            assert_eq!(chosen, wanted, "{features:?}");
            let cells = policy.clear.as_flattened().as_flattened();
            let quadwords = cells.contains(&ClearKernel::Quadwords);
            assert_eq!(quadwords, wanted.0 == ClearKernel::Quadwords, "{features:?}");
        }
    }
}

/// On processors without `feature`, every place that takes a policy refuses one that `change` has spoilt, and
/// keeps its policy. `test` gets the machine's clearer and the error of every refusal.
fn without(
    feature: Feature,
    kernel: &'static str,
    change: impl FnOnce(&mut ClearPolicy),
    test: impl FnOnce(&Hosted, &Clearer, KernelError),
) {
    let machine = HostedConfig::new(4 * MIB).without(feature).build().unwrap();
    machine.run_on(CpuId(0), || {
        let clearer = Clearer::new(&machine, None).unwrap();
        let before = clearer.policy();
        let mut policy = before;
        change(&mut policy);
        let refused = KernelError::Missing { kernel, feature: feature.name() };
        assert_eq!(clearer.set_policy(&policy), Err(refused));
        assert_eq!(clearer.policy(), before);
        assert_eq!(Clearer::new(&machine, Some(&policy)).map(|_| ()), Err(refused));
        let config = AllocatorConfig { clear: Some(policy), ..AllocatorConfig::default() };
        let error =
            hosted::raw::page_allocator(&machine, &ranges_of(&machine), config).map(|_| ()).unwrap_err();
        assert_eq!(error, InitError::BadKernel(refused));
        let said = error.to_string();
        let names = [kernel, feature.name()].map(|name| format!("`{name}`"));
        assert!(names.iter().all(|name| said.contains(name)), "{said}");
        assert!(said.ends_with(": choose another one, or calibrate anew"), "{said}");
        test(&machine, &clearer, refused);
    });
}

const SCRATCH: FrameRange = FrameRange::new(Frame(0), 64);

/// Each kernel is tried on a machine without its features, whatever the host has.
#[test]
fn a_clear_that_the_processor_cannot_do_is_refused_by_name() {
    for kernel in ClearKernel::ALL {
        let Some(feature) = kernel.needs() else { continue };
        without(
            feature,
            kernel.name(),
            |policy| policy.clear[1][2][7] = kernel,
            |machine, clearer, refused| {
                assert_eq!(measure_clear(machine, clearer, kernel, 0, SCRATCH, 0), Err(refused));
            },
        );
    }
}

#[test]
fn a_copy_that_the_processor_cannot_do_is_refused_by_name() {
    for kernel in CopyKernel::ALL {
        let Some(feature) = kernel.needs() else { continue };
        without(
            feature,
            kernel.name(),
            |policy| policy.copy[2][0][18] = kernel,
            |machine, clearer, refused| {
                assert_eq!(measure_copy(machine, clearer, kernel, 0, SCRATCH, 0), Err(refused));
            },
        );
    }
}

#[test]
fn a_policy_that_was_set_is_the_one_that_is_used() {
    let machine = HostedConfig::new(4 * MIB).build().unwrap();
    machine.run_on(CpuId(0), || {
        let wanted = ClearPolicy::only(ClearKernel::Movnti, CopyKernel::Movnti);
        let config = AllocatorConfig { clear: Some(wanted), ..AllocatorConfig::default() };
        let allocator = hosted::raw::page_allocator(&machine, &ranges_of(&machine), config).unwrap();
        assert_eq!(allocator.frames().clearer().policy(), wanted);
        let mut other = wanted;
        other.copy[2][1][18] = CopyKernel::String;
        other.clear[0][2][0] = ClearKernel::String;
        other.stretch = Stretch::of(3 * MIB).unwrap();
        allocator.frames().clearer().set_policy(&other).unwrap();
        assert_eq!(allocator.frames().clearer().policy(), other);
    });
}

/// A calibration in which every kernel costs the same, to be changed.
fn flat() -> Calibration {
    let mut flat = Calibration::empty(CACHES);
    flat.clear.as_flattened_mut().as_flattened_mut().fill(Cost { fill: 1000, read: 1000 });
    flat.copy.as_flattened_mut().as_flattened_mut().fill(Cost { fill: 1000, read: 1000 });
    flat
}

#[test]
fn what_was_measured_decides() {
    let all = features(&Feature::ALL);
    let mut measured = flat();
    let class = class_of(4 * MIB);
    // Fast to fill and slow to read afterwards, and the other way round.
    measured.clear[0][ClearKernel::Clzero as usize][class] = Cost { fill: 400, read: 2000 };
    measured.clear[0][ClearKernel::Cached as usize][class] = Cost { fill: 900, read: 200 };
    let policy = measured.policy(all);
    assert_eq!(policy.clear_kernel(TouchHint::Soon, 1, 4 * MIB), ClearKernel::Cached);
    assert_eq!(policy.clear_kernel(TouchHint::Later, 1, 4 * MIB), ClearKernel::Clzero);
    // Two CPUs were measured too, with equal costs.
    assert_ne!(policy.clear_kernel(TouchHint::Later, 2, 4 * MIB), ClearKernel::Clzero);
    // Without the feature the next best kernel is chosen.
    let without = measured.policy(all.without(Feature::Clzero));
    assert_ne!(without.clear_kernel(TouchHint::Later, 1, 4 * MIB), ClearKernel::Clzero);
    assert_eq!(without.check(all.without(Feature::Clzero)), Ok(()));
}

/// Where a kernel must save the task's vector registers, a kernel with vectors pays for that once in a stretch:
/// all of it for a page, little for a large extent.
#[test]
fn saved_vector_registers_have_a_price() {
    let all = features(&Feature::ALL);
    let mut measured = flat();
    // With vectors 100 us for each MiB, without 120, past the caches and through them.
    let costs = [
        (ClearKernel::Cached, 100_000),
        (ClearKernel::String, 120_000),
        (ClearKernel::Nt64, 100_000),
        (ClearKernel::Movnti, 120_000),
    ];
    for kernel in ClearKernel::ALL {
        let known = costs.iter().find(|(one, _)| *one == kernel).map_or(900_000, |(_, fill)| *fill);
        measured.clear[0][kernel as usize].iter_mut().for_each(|cost| cost.fill = known);
    }
    let chosen = |ns: u32| {
        let policy = measured.paying_for_vectors(ns).policy(all);
        [4096, 1 << 30].map(|bytes| policy.clear_kernel(TouchHint::Later, 1, bytes))
    };
    assert_eq!(chosen(0), [ClearKernel::Cached, ClearKernel::Nt64]);
    // 200 ns for 4 KiB are 51 us for each MiB, and 0.4 us for stretches of 512 KiB.
    assert_eq!(chosen(200), [ClearKernel::String, ClearKernel::Nt64]);
    assert_eq!(chosen(20_000), [ClearKernel::String, ClearKernel::Movnti]);
}

/// A kernel whose cost is close to the best is kept from one extent size to the next; a dearer one is not.
#[test]
fn chance_does_not_change_the_kernel() {
    let mut measured = flat();
    let class = class_of(2 * MIB);
    for (at, fill) in [(class, 100), (class + 1, 102), (class + 2, 110)] {
        measured.clear[0][ClearKernel::Nt16 as usize][at] = Cost { fill, read: 1000 };
        measured.clear[0][ClearKernel::Nt64 as usize][at] =
            Cost { fill: if at == class { 120 } else { 100 }, read: 1000 };
    }
    let policy = measured.policy(features(&Feature::ALL));
    let kernels = [2, 4, 8].map(|mib| policy.clear_kernel(TouchHint::Later, 1, mib * MIB));
    assert_eq!(kernels, [ClearKernel::Nt16, ClearKernel::Nt16, ClearKernel::Nt64]);
}

/// A burst of noise at one extent size does not decide where all sizes are the same work; a smaller extent is
/// measured for itself.
#[test]
fn extents_that_fill_the_last_cache_count_as_one() {
    let mut measured = flat();
    for class in class_of(MIB)..CLASSES {
        measured.clear[0][ClearKernel::Nt16 as usize][class] = Cost { fill: 110, read: 1000 };
        measured.clear[0][ClearKernel::Nt64 as usize][class] = Cost { fill: 100, read: 1000 };
    }
    for bytes in [CACHES.last / 4, 1 << 30] {
        measured.clear[0][ClearKernel::Nt64 as usize][class_of(bytes)].fill = 120;
    }
    let policy = measured.policy(features(&Feature::ALL));
    let kernel = |bytes| policy.clear_kernel(TouchHint::Later, 1, bytes);
    assert_eq!(kernel(CACHES.last / 4), ClearKernel::Nt16);
    for class in class_of(CACHES.last)..CLASSES {
        assert_eq!(kernel(bytes_of(class)), ClearKernel::Nt64, "{class}");
    }
}

/// Of two kernels with the same cost, including the later use, the one that leaves the caches alone is
/// chosen. One that costs more than that is worth is not.
#[test]
fn caches_are_others_too() {
    let mut measured = flat();
    let only = |measured: &mut Calibration, bytes, cached, past| {
        for kernel in ClearKernel::ALL {
            let fill = if kernel.is_streaming() { past } else { cached };
            measured.clear[0][kernel as usize][class_of(bytes)] = Cost { fill, read: 500 };
        }
    };
    only(&mut measured, 64 << 10, 1000, 1000);
    only(&mut measured, 128 << 10, 1400, 1000);
    only(&mut measured, 256 << 10, 1030, 1000);
    only(&mut measured, MIB, 1000, 1050);
    only(&mut measured, 2 * MIB, 1000, 1300);
    let policy = measured.policy(features(&Feature::ALL));
    let streams = |bytes| policy.clear_kernel(TouchHint::Soon, 1, bytes).is_streaming();
    assert_eq!([64 << 10, MIB, 2 * MIB].map(streams), [false, true, false]);
    // So many bytes wait in the core's own caches until they are used, which is worth something, but not
    // everything.
    assert_eq!([128 << 10, 256 << 10].map(streams), [true, false]);
}

/// Zeroes that were streamed are read from memory, whichever kernel wrote them: the measured cost of reading
/// decides nothing.
#[test]
fn one_way_past_the_caches_is_read_like_another() {
    let mut measured = flat();
    let class = class_of(8 * MIB);
    for (kernel, fill, read) in [(ClearKernel::Nt16, 110, 100), (ClearKernel::Nt64, 100, 1000)] {
        measured.clear[0][kernel as usize][class] = Cost { fill, read };
    }
    let policy = measured.policy(features(&Feature::ALL));
    assert_eq!(policy.clear_kernel(TouchHint::Soon, 1, 8 * MIB), ClearKernel::Nt64);
}

#[test]
fn measurements_do_not_undo_the_bounds() {
    let mut measured = flat();
    for threads in 0..THREADS {
        for class in 0..CLASSES {
            // Streaming is far ahead for small extents, cached stores for large ones.
            let (fast, slow) = (Cost { fill: 1, read: 1 }, Cost { fill: 5000, read: 5000 });
            let small = bytes_of(class) <= CLEAR_CACHED_BYTES;
            measured.clear[threads][ClearKernel::Nt64 as usize][class] = if small { fast } else { slow };
            measured.clear[threads][ClearKernel::Cached as usize][class] = if small { slow } else { fast };
        }
    }
    let policy = measured.policy(features(&Feature::ALL));
    for hint in TouchHint::ALL {
        for class in 0..CLASSES {
            let kernel = policy.clear_kernel(hint, 1, bytes_of(class));
            let small = bytes_of(class) <= CLEAR_CACHED_BYTES;
            assert!(!small || !kernel.is_streaming(), "{hint:?} {class}: a small extent streams");
            let large = bytes_of(class) > CACHES.last / 8;
            assert!(!large || kernel.is_streaming(), "{hint:?} {class}: a large extent does not");
        }
    }
}

#[test]
fn what_was_not_measured_is_as_for_less_or_as_suggested() {
    let all = features(&Feature::ALL);
    let suggested = ClearPolicy::suggested(all, CACHES);
    assert_eq!(Calibration::empty(CACHES).policy(all), suggested);
    let mut measured = Calibration::empty(CACHES);
    let class = class_of(512 << 20);
    measured.clear[0][ClearKernel::Movnti as usize][class] = Cost { fill: 10, read: 10 };
    let policy = measured.policy(all);
    for cpus in [1, 2, 4] {
        assert_eq!(policy.clear_kernel(TouchHint::Later, cpus, 1 << 30), ClearKernel::Movnti);
    }
    // An extent as large as the last cache counts as large; a smaller one does not.
    let choices = [CACHES.last, CACHES.last / 2].map(|bytes| policy.clear_kernel(TouchHint::Later, 1, bytes));
    assert_eq!(choices, [ClearKernel::Movnti, suggested.clear_kernel(TouchHint::Later, 1, CACHES.last / 2)]);
    // Costs of stretches of another length are ignored.
    measured.stretch = Stretch::of(MIB).unwrap();
    assert_eq!(measured.policy(all), suggested);
}

#[test]
fn the_table_is_printed_where_it_changes() {
    let mut policy = ClearPolicy::only(ClearKernel::String, CopyKernel::String);
    policy.clear[TouchHint::Later as usize][0][5..].fill(ClearKernel::Nt16);
    let text = policy.to_string();
    assert!(text.contains("clear later 1: string from 4KiB, nt16 from 128KiB\n"), "{text}");
    assert!(text.contains("copy unknown 4: string from 4KiB\n"), "{text}");
    assert!(text.starts_with("stretch: 512KiB\n"), "{text}");
    assert!(policy.with_stretch(Stretch::ENDLESS).to_string().starts_with("stretch: none\n"));
    assert_eq!(text.lines().count(), 19);
}

/// A calibration measures the machine: costs exist and are plausible, and memory outside its range is
/// untouched.
#[test]
#[cfg(not(miri))]
fn measuring_gives_costs() {
    let machine = HostedConfig::new(8 * MIB).build().unwrap();
    machine.run_on(CpuId(0), || {
        let clearer = Clearer::new(&machine, None).unwrap();
        // SAFETY: H1: the machine's memory, which this test alone uses.
        unsafe { machine.direct_map(Frame(0).addr()).write_bytes(0xff, 8 * MIB as usize) };
        let scratch = FrameRange::new(Frame(10), 1000);
        for kernel in [ClearKernel::String, ClearKernel::Movnti] {
            for class in [0, class_of(64 << 10), class_of(2 * MIB), class_of(1 << 30)] {
                let cost = measure_clear(&machine, &clearer, kernel, class, scratch, 1_000_000).unwrap();
                let rate = cost.mib_per_second();
                assert!(
                    cost.is_known() && (50..4_000_000).contains(&rate),
                    "{kernel:?} {class}: {rate} MiB/s"
                );
            }
        }
        let cost = measure_copy(&machine, &clearer, CopyKernel::String, 9, scratch, 1_000_000).unwrap();
        assert!(cost.is_known());
        // SAFETY: H1: a byte of the machine's memory, which this test alone uses.
        let byte = |frame: u64| unsafe { *machine.direct_map(Frame(frame).addr()) };
        assert_eq!([9, 1010, 2047].map(byte), [0xff; 3]);
        assert_eq!([10, 509].map(byte), [0; 2]);
    });
}

/// There is nothing to measure, and nothing to divide by.
#[test]
fn no_scratch_costs_nothing() {
    let machine = HostedConfig::new(MIB).build().unwrap();
    let none = FrameRange::new(Frame(0), 0);
    let clearer = Clearer::new(&machine, None).unwrap();
    assert_eq!(measure_clear(&machine, &clearer, ClearKernel::String, 0, none, 0), Ok(Cost::default()));
}
