use super::{Caches, CpuFeatures, CpuidResult, Feature};

/// The parts of a leaf with caches of 48 KiB, 2 MiB and 30 MiB, and the one that ends the list.
fn answers() -> [CpuidResult; 5] {
    let cache = |kind: u32, level: u32, ways: u32, sets: u32| CpuidResult {
        eax: kind | level << 5,
        ebx: 63 | (ways - 1) << 22,
        ecx: sets - 1,
        edx: 0,
    };
    [
        cache(1, 1, 12, 64),
        cache(2, 1, 8, 64),
        cache(3, 2, 16, 2048),
        cache(3, 3, 12, 40960),
        cache(0, 0, 1, 1),
    ]
}

#[test]
fn cache_sizes_are_read_off_the_leaves() {
    let found = Caches::from_leaves(answers().into_iter());
    assert_eq!(found, Caches { first: 48 << 10, second: 2 << 20, last: 30 << 20 });
    // Parts behind the end of the list are not read.
    let cut = [answers()[0], answers()[4], answers()[3]];
    assert_eq!(Caches::from_leaves(cut.into_iter()), Caches { first: 48 << 10, second: 0, last: 48 << 10 });
}

#[test]
#[cfg(not(miri))]
fn what_is_found_is_what_the_standard_library_finds() {
    let found = CpuFeatures::detect();
    assert_eq!(found.has(Feature::Sse2), std::is_x86_feature_detected!("sse2"));
    assert_eq!(found.has(Feature::Avx), std::is_x86_feature_detected!("avx"));
    assert_eq!(found.has(Feature::Avx512), std::is_x86_feature_detected!("avx512f"));
    assert_eq!(found.has(Feature::Erms), std::is_x86_feature_detected!("ermsb"));
    let caches = Caches::detect();
    assert!(caches.first >= 16 << 10 && caches.last >= caches.first, "{caches:?}");
}

#[test]
fn taking_vectors_away_leaves_the_rest() {
    let found = CpuFeatures::detect();
    let rest = found.without_vectors();
    for feature in Feature::ALL {
        let vector = matches!(feature, Feature::Sse2 | Feature::Avx | Feature::Avx512);
        assert_eq!(rest.has(feature), found.has(feature) && !vector);
        assert!(!found.without(feature).has(feature));
    }
}
