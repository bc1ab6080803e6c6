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
fn a_time_in_faults_is_judged_by_the_middle_half_of_the_runs() {
    let ms = 1_000_000;
    let times = [11 * ms, 13 * ms, 12 * ms, 92 * ms];
    let figure = Figure::of_time(12 * ms, &times);
    let Spread { median, least, most, .. } = figure.measured;
    assert_eq!((median, least, most), (25 * ms / 2, 11 * ms, 92 * ms), "the middle half counts");
    assert_eq!((figure.error_percent, figure.verdict), (-4.0, Verdict::Within));
    assert_eq!(Figure::of_time(15 * ms, &times).verdict, Verdict::Missed, "however much runs differ");
    let twenty_short = [ms; 20];
    assert_eq!(Figure::of_time(6 * ms / 5, &twenty_short).verdict, Verdict::Missed, "0.2 ms are 20 %");
    assert_eq!(Figure::of_time(6 * ms / 5, &twenty_short[..2]).verdict, Verdict::WithinGrain);
}

#[test]
fn a_run_far_from_all_others_excuses_no_prediction() {
    let of = |predicted, runs: &[u64]| Figure::of_faults(predicted, runs.to_vec());
    let figure = of(110, &[100, 100, 100, 100, 100, 101, 102, 155]);
    assert_eq!(
        (figure.verdict, figure.measured.most, figure.measured.spread_percent),
        (Verdict::Missed, 155, 55.0)
    );
    assert_eq!(of(110, &[100, 92, 104, 155]).verdict, Verdict::Missed);
    let two_kinds = [90, 91, 90, 92, 110, 111, 110, 112];
    assert_eq!(of(90, &two_kinds).verdict, Verdict::WithinSpread, "half of them are there");
    assert_eq!(of(110, &[97, 100, 112]).verdict, Verdict::WithinSpread, "of three runs all count");
    assert_eq!(of(0, &[]).verdict, Verdict::Within);
}

/// By hand: of 1, 3, 5, 7, 9, 11, 13 and 99 the middle half is 5 to 11, and with both ends drawn in they are 5, 5, 5, 7, 9, 11, 11
/// and 11, the squares of whose distances from 8 sum up to 56.
#[test]
fn the_deviation_is_that_of_the_middle_half() {
    let of = deviation_percent(&[1, 99, 13, 3, 5, 11, 7, 9]).unwrap();
    let by_hand = (56.0_f64 / 7.0).sqrt() / (0.5 * 8.0_f64.sqrt()) / 8.0 * 100.0;
    assert!((of - by_hand).abs() < 1e-9, "{of} {by_hand}");
    assert_eq!(deviation_percent(&[1, 2, 3]), None, "too few");
    assert_eq!([deviation_percent(&[0; 8]), deviation_percent(&[])], [None, None]);
    assert_eq!(deviation_percent(&[7; 8]), Some(0.0));
}

/// Drawn runs with as many samples as chance gives them: the deviation is that of the measured times of many experiments.
#[test]
fn the_deviation_tells_how_far_measured_times_are_apart() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut experiment = || {
        let mut run = || (0..400).filter(|_| random.u32(..100) < 5).count() as u64 * SAMPLE_NS;
        let times: Vec<u64> = (0..20).map(|_| run()).collect();
        (usual(times.iter().map(|ns| *ns as f64).collect()), deviation_percent(&times).unwrap())
    };
    let experiments: Vec<(f64, f64)> = (0..400).map(|_| experiment()).collect();
    let mean = |of: &dyn Fn(&(f64, f64)) -> f64| experiments.iter().map(of).sum::<f64>() / 400.0;
    let middle = mean(&|(time, _)| *time);
    let apart = mean(&|(time, _)| (time - middle).powi(2)).sqrt() / middle * 100.0;
    let told = mean(&|(_, deviation)| *deviation);
    assert!((0.85..1.2).contains(&(told / apart)), "{told} {apart}");
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
                samples: Vec::new(),
                deviation_percent: None,
                parts: BTreeMap::new(),
                each_recording: EachRecording::default(),
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
