use super::*;

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

#[test]
fn the_advice_is_judged_by_the_fastest_set() {
    let rows = |times: &[(&str, u64)]| -> Vec<Row> {
        let row = |(folio, run_ns): &(&str, u64)| {
            let figure = Figure::new(1, Spread::of(vec![1]), 5.0, 0);
            Row {
                folio: (*folio).to_owned(),
                replayed_faults: 1,
                faults: figure,
                peak_rss_bytes: figure,
                fault_ns: None,
                kernel_ns: Spread::of(vec![1]),
                run_ns: Spread::of(vec![*run_ns]),
                fell_back: 0,
                exit_codes: vec![0],
            }
        };
        times.iter().map(row).collect()
    };
    let set = |order| (FolioSet::FRAMES.and(order), 0.04);
    let advice = Advice::of(set(4), &rows(&[("4K", 1100), ("64K", 1020), ("2M", 1000)])).unwrap();
    assert_eq!((advice.best.as_str(), advice.best_run_ns, advice.verdict), ("2M", 1000, Verdict::Within));
    assert_eq!((advice.waste_percent, advice.longer_percent), (4.0, 2.0));
    let advice = Advice::of(set(4), &rows(&[("4K", 999), ("64K", 1020)])).unwrap();
    assert_eq!(advice.verdict, Verdict::Missed);
    assert_eq!(Advice::of(set(4), &rows(&[("4K", 999)])), None, "it was not measured");
}
