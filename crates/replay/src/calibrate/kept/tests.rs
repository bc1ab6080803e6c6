use quire::arch::{Caches, ClearKernel};
use quire::clear::Cost;
use quire::platform::TouchHint;

use super::super::walk::is_huge;
use super::*;

/// Figures that choose for 1 GiB a kernel that the suggestions never choose where there are others.
fn telling() -> Calibration {
    let mut telling = Calibration::empty(Caches::detect());
    telling.clear[0][ClearKernel::Movnti as usize][18] = Cost { fill: 1, read: 1 };
    telling
}

#[test]
fn the_place_is_the_users_cache() {
    let place = |cache: &str, home: &str| {
        place_of(|name| {
            Some(if name == "HOME" { home } else { cache }).filter(|set| !set.is_empty()).map(Into::into)
        })
    };
    assert_eq!(place("/c", "/h"), Some("/c/quire/calibration.json".into()));
    assert_eq!(place("", "/h"), Some("/h/.cache/quire/calibration.json".into()));
    assert_eq!(
        place("c", "/h"),
        Some("/h/.cache/quire/calibration.json".into()),
        "a relative one does not count"
    );
    assert_eq!(place("", ""), None);
    assert_eq!(place("", "h"), None);
}

#[test]
fn what_was_kept_is_the_policy() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("not/yet/there/calibration.json");
    assert!(kept_in(Some(&place)).why.unwrap().ends_with("run `quire calibrate`"));
    keep(&telling(), &place).unwrap();
    for chosen in [kept_in(Some(&place)), choose(Some(&place)).unwrap()] {
        let policy = chosen.policy.expect("it was measured");
        assert_eq!(policy.clear_kernel(TouchHint::Later, 1, 1 << 30), ClearKernel::Movnti);
        assert_eq!((chosen.file.as_deref(), chosen.why), (Some(place.as_path()), None));
    }
}

/// A kept file that cannot be used is skipped with a note; one that was named is an error.
#[test]
fn what_cannot_be_used_is_left_alone_and_told() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("calibration.json");
    std::fs::write(&place, "{\"version\": 2}").unwrap();
    let chosen = kept_in(Some(&place));
    let why = chosen.why.unwrap();
    assert!(chosen.policy.is_none() && chosen.file.is_none());
    assert!(why.contains(place.to_str().unwrap()) && why.contains("calibrate anew"), "{why}");
    assert!(choose(Some(&place)).is_err());
    assert!(kept_in(None).why.unwrap().contains("--save FILE"));
}

#[test]
fn clearing_takes_about_as_long_as_in_the_kernel() {
    const HUGE: usize = 2 << 20;
    const FAULTS: usize = 32;
    let mut memory = MmapMut::map_anon((FAULTS + 1) * HUGE).unwrap();
    let _ = memory.advise(Advice::HugePage);
    let first = memory.as_ptr().align_offset(HUGE);
    // The kernel clears a page of 2 MiB when its first byte is stored.
    let faults = memory[first..first + FAULTS * HUGE].chunks_exact_mut(HUGE).map(|page| {
        let start = Instant::now();
        page[0] = 1;
        std::hint::black_box(page);
        start.elapsed().as_nanos() as f64 / (HUGE / 4096) as f64
    });
    let kernel = faults.fold(f64::MAX, f64::min);
    if !is_huge(&memory, FAULTS * HUGE) {
        println!("skipped: no huge pages here");
        return;
    }
    let quick = quick_clearing_ns().unwrap();
    assert!((0.5..2.0).contains(&(quick / kernel)), "{quick} ns, the kernel {kernel}");
}
