use super::*;

#[test]
fn a_replay_changes_the_recorded_count_by_what_it_saves() {
    assert_eq!(expected_faults(1000, 900, 900), 1000);
    assert_eq!(expected_faults(1000, 900, 100), 200, "100 faults have no event");
    assert_eq!(expected_faults(1000, 900, 950), 1050, "a size may cost faults too");
    assert_eq!(expected_faults(10, 900, 100), 0);
    assert_eq!(expected_faults(0, 900, 100), 100, "the kernel did not tell");
}

#[test]
fn the_median_of_an_even_number_is_between_the_middle_two() {
    let spread = Spread::of(vec![40, 10, 30, 20]);
    assert_eq!(spread, Spread { median: 25, least: 10, most: 40, spread_percent: 120.0 });
    assert_eq!(Spread::of(vec![7, 1000, 8]).median, 8);
    assert_eq!(Spread::of(vec![]).spread_percent, 0.0);
}

#[test]
fn an_error_is_judged_by_what_is_allowed_and_then_by_the_spread() {
    let verdict = |predicted, runs: &[u64]| Figure::new(predicted, Spread::of(runs.to_vec()), 5.0, 0).verdict;
    assert_eq!(verdict(105, &[100, 100, 100]), Verdict::Within);
    assert_eq!(verdict(95, &[100, 100, 100]), Verdict::Within);
    assert_eq!(verdict(106, &[100, 100, 100]), Verdict::Missed);
    assert_eq!(verdict(106, &[97, 100, 103]), Verdict::WithinSpread);
    assert_eq!(verdict(107, &[97, 100, 103]), Verdict::Missed);
    let coarse = |predicted| Figure::new(predicted, Spread::of(vec![100]), 5.0, 10).verdict;
    assert_eq!([104, 110, 111].map(coarse), [Verdict::Within, Verdict::WithinGrain, Verdict::Missed]);
    assert_eq!(verdict(0, &[0]), Verdict::Within);
    assert_eq!(verdict(1, &[0]), Verdict::Missed);
    assert_eq!(Figure::new(90, Spread::of(vec![100]), 5.0, 0).error_percent, -10.0);
}
