use super::*;

fn small(number: u64) -> Page {
    Page { number, size: Size::Small }
}

/// The first page of 2 MiB and the first of 4 KiB have the same number, and are two entries.
#[test]
fn sizes_are_apart() {
    let mut model = Model::new(&Processor::assumed("GenuineIntel"));
    for size in [Size::Small, Size::Group, Size::Large] {
        model.access(Access::Load, Page { number: 0, size });
    }
    assert_eq!(model.counts(), Counts { walks: 3, ..Counts::default() });
}

#[test]
fn a_sequential_stream_walks_once_a_page() {
    let mut model = Model::new(&Processor::assumed("GenuineIntel"));
    for line in 0..64 * 10_000 {
        model.access(Access::Load, small(line / 64));
    }
    assert_eq!(model.counts(), Counts { walks: 10_000, ..Counts::default() });
    // The last pages are still there, on the second level.
    (9000..10_000).for_each(|page| model.access(Access::Store, small(page)));
    assert_eq!(model.counts(), Counts { walks: 10_000, second: 1000, ..Counts::default() });
}

/// Random accesses to W pages miss E entries with the chance 1 - E/W, whatever is dropped.
#[test]
fn random_accesses_miss_by_the_share_that_does_not_fit() {
    for vendor in ["GenuineIntel", "AuthenticAMD"] {
        let processor = Processor::assumed(vendor);
        for (access, level) in [(Access::Load, 2), (Access::Fetch, 1)] {
            let serving = |tlb: &&Tlb| tlb.level == level && tlb.serves(access, Size::Small);
            let entries = processor.tlbs.iter().find(serving).expect("there is one").entries;
            let pages = u64::from(entries) * 3;
            let mut random = fastrand::Rng::with_seed(7);
            let mut model = Model::new(&processor);
            let mut missed = |accesses: u64| {
                let before = model.counts();
                (0..accesses).for_each(|_| model.access(access, small(random.u64(0..pages))));
                let after = model.counts();
                match level {
                    2 => after.walks - before.walks,
                    _ => after.fetch_second + after.fetch_walks - before.fetch_second - before.fetch_walks,
                }
            };
            missed(20 * pages);
            let share = missed(200_000) as f64 / 200_000.0;
            assert!((share - 2.0 / 3.0).abs() < 0.01, "{vendor} {access:?}: {share}");
        }
    }
}

#[test]
fn instructions_and_data_share_the_second_level_of_intel_alone() {
    for (vendor, shared) in [("GenuineIntel", true), ("AuthenticAMD", false)] {
        let mut model = Model::new(&Processor::assumed(vendor));
        model.access(Access::Fetch, small(1));
        model.access(Access::Load, small(1));
        let wanted = Counts {
            fetch_walks: 1,
            second: u64::from(shared),
            walks: u64::from(!shared),
            ..Counts::default()
        };
        assert_eq!(model.counts(), wanted, "{vendor}");
    }
}
