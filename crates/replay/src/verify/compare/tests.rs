use super::super::run_off::Against;
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
fn a_time_in_faults_has_what_samples_do_not_see() {
    let ms = 1_000_000;
    let sampled = [9 * ms, 11 * ms, 10 * ms, 90 * ms];
    let figure = Figure::of_time(12 * ms, &sampled, 2 * ms);
    let Spread { median, least, most, .. } = figure.measured;
    assert_eq!((median, least, most), (25 * ms / 2, 11 * ms, 92 * ms), "the middle half counts");
    assert_eq!((figure.error_percent, figure.verdict), (-4.0, Verdict::Within));
    assert_eq!(
        Figure::of_time(15 * ms, &sampled, 2 * ms).verdict,
        Verdict::Missed,
        "however much runs differ"
    );
    let twenty_short = [ms; 20];
    assert_eq!(Figure::of_time(6 * ms / 5, &twenty_short, 0).verdict, Verdict::Missed, "0.2 ms are 20 %");
    assert_eq!(Figure::of_time(6 * ms / 5, &twenty_short[..2], 0).verdict, Verdict::WithinGrain);
}

#[test]
fn the_advice_is_judged_by_the_fastest_set() {
    let rows = |times: &[(&str, u64)]| -> Vec<Row> {
        let row = |(folio, run_ns): &(&str, u64)| {
            let figure = Figure::new(1, Spread::of(vec![1]), 5.0, 0);
            Row {
                huge_bytes: None,
                pool_bytes: None,
                folio: (*folio).to_owned(),
                replayed_faults: 1,
                faults: figure,
                peak_rss_bytes: figure,
                processes: Processes::default(),
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
    let in_turns = |turns: [&[u64]; 3]| turns.map(<[u64]>::to_vec);
    let times = in_turns([&[1100; 5], &[1020; 5], &[1000; 5]]);
    let advice =
        Advice::of(set(4), &rows(&[("4K", 1100), ("64K", 1020), ("2M", 1000)]), &times, None).unwrap();
    assert_eq!((advice.best.as_str(), advice.best_run_ns, advice.verdict), ("2M", 1000, Verdict::Within));
    assert_eq!((advice.waste_percent, advice.longer_percent), (4.0, 2.0));
    let missed = rows(&[("4K", 999), ("64K", 1020)]);
    let times = in_turns([&[999; 5], &[1020; 5], &[]]);
    assert_eq!(Advice::of(set(4), &missed, &times, None).unwrap().verdict, Verdict::Missed);
    assert_eq!(Advice::of(set(4), &rows(&[("4K", 999)]), &times, None), None, "it was not measured");
    // In one turn of five it was the faster one.
    let times = in_turns([&[999, 999, 999, 999, 1200], &[1020; 5], &[]]);
    let advice = Advice::of(set(4), &missed, &times, None).unwrap();
    assert_eq!((advice.verdict, advice.between_percent.0), (Verdict::WithinSpread, -15.0));
    // Where there are further turns, these count.
    let judged = |between_percent| {
        let first = Against { folio: "4K".to_owned(), turns: 40, longer_percent: 1.0, between_percent };
        Advice::of(set(4), &missed, &times, Some(RunOff { against: vec![first] })).unwrap().verdict
    };
    let verdicts = [(-1.0, 2.0), (-1.0, 2.1), (2.1, 9.0)].map(judged);
    assert_eq!(verdicts, [Verdict::Within, Verdict::WithinSpread, Verdict::Missed]);
}

#[test]
fn leaves_of_2_mib_are_those_of_one_process_that_could_be_read() {
    let process = |huge_bytes| ProcessPeak { program: "a".to_owned(), peak_rss_bytes: 1, huge_bytes };
    let of = |runs: Vec<Vec<ProcessPeak>>| huge_bytes(&Runs { processes: runs, ..Runs::default() });
    assert_eq!(of(vec![vec![process(Some(3))], vec![process(Some(0))]]), Some(vec![3, 0]));
    assert_eq!(of(vec![vec![process(Some(3))], vec![process(None)]]), None);
    assert_eq!(of(vec![vec![process(Some(3)), process(Some(0))]]), None);
    assert_eq!(of(Vec::new()), None);
}
