use std::collections::BTreeMap;

use super::super::compare::{Advice, EachRecording, Figure, Spread};
use super::super::conditions::{Conditions, PoolPages};
use super::super::run_off::RunOff;
use super::*;

fn compared(command: &[&str]) -> Compared {
    let spread = |median| Spread { median, least: median, most: median, spread_percent: 103.7 };
    let figure = |predicted, median, verdict| Figure {
        predicted,
        measured: spread(median),
        error_percent: -102.8,
        verdict,
    };
    let row = |folio, verdict| Row {
        huge_bytes: None,
        pool_bytes: None,
        folio: str::to_owned(folio),
        replayed_faults: 1,
        faults: figure(123_456_789, 12_345_678, verdict),
        peak_rss_bytes: figure(12_345 << 20, 12_346 << 20, Verdict::Missed),
        processes: Processes::default(),
        fault_ns: Some(figure(12_345_678_900, 1_234_567_890, verdict)),
        samples: vec![1; 1000],
        deviation_percent: Some(123.45),
        parts: BTreeMap::new(),
        each_recording: EachRecording::default(),
        kernel_ns: spread(12_345_000_000),
        run_ns: spread(1_234_567_000_000),
        fell_back: 7,
        exit_codes: vec![0, 3],
    };
    Compared {
        conditions: Conditions::default().told(),
        schema: 1,
        program: "p".to_owned(),
        program_version: String::new(),
        command: command.iter().map(|&word| word.to_owned()).collect(),
        recorded_kernel: "6.18".to_owned(),
        recorded_faults: 1,
        runs: 5,
        stopped_at_exit: true,
        sampled_runs: 7,
        unsampled_ns: 12_345.6,
        sampling_percent: Some(12.34),
        recordings: 8,
        prices_measured: false,
        sizes: vec![
            row("128K", Verdict::Within),
            row("2M", Verdict::WithinSpread),
            row("4K", Verdict::Missed),
        ],
        advice: Some(Advice {
            folio: "64K+2M".to_owned(),
            waste_percent: 4.96,
            run_ns: 1_234_567_000_000,
            best: "128K".to_owned(),
            best_run_ns: 1_134_567_000_000,
            longer_percent: 108.8,
            between_percent: (-100.4, 1234.5),
            run_off: None,
            verdict: Verdict::WithinSpread,
        }),
        machine: serde_json::Value::Null,
        commit: "",
    }
}

#[test]
fn no_line_is_longer_than_80_columns() {
    let text = section(&compared(&["program", &"argument ".repeat(30)]));
    assert!(text.ends_with("the times contain that.\n"), "{text}");
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    assert!(text.lines().next().is_some_and(|first| first.ends_with("…, 5 runs of each size")), "{text}");
}

#[test]
fn processes_that_are_not_as_predicted_are_named() {
    let mut compared = compared(&["p"]);
    assert!(!section(&compared).contains("each process"), "the largest is all there is");
    let figure = compared.sizes[0].peak_rss_bytes;
    let matched = |number| ProcessFigure {
        program: "fifteen bytes\u{1b}x".to_owned(),
        number,
        runs: 5,
        peak_rss_bytes: match number {
            1 => figure,
            _ => Figure { verdict: Verdict::Within, error_percent: 0.1, ..figure },
        },
    };
    for row in &mut compared.sizes {
        row.processes.matched = (1..=3).map(matched).collect();
    }
    compared.sizes[1].processes.only_predicted = 12;
    let text = section(&compared);
    let said = "\nPeak RSS of each process: 6 of 9 within these.\n        Not compared: 12 only in the replay, 0 only in the runs.\n";
    assert!(text.contains(said), "{text}");
    assert!(text.contains("x' 1 under 128K: 12345.0, 12346.0 measured, -102.8%\n"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

/// Sets that memory gets which asks have long names.
#[test]
fn long_names_of_sets_fit_into_the_lines_about_the_advice() {
    let mut compared = compared(&["p"]);
    let [folio, best] = ["64K+128K, 2M by madvise", "16K+32K, 2M by madvise"].map(str::to_owned);
    let advice = compared.advice.as_mut().unwrap();
    (advice.folio, advice.best) = (folio, best.clone());
    let against =
        Against { folio: best, turns: 1600, longer_percent: -100.5, between_percent: (-20.4, 1234.5) };
    for run_off in [None, Some(RunOff { against: vec![against] })] {
        compared.advice.as_mut().unwrap().run_off = run_off;
        let text = section(&compared);
        assert!(
            text.contains("\nAdvice: 64K+128K, 2M by madvise, untouched 5.0 %; 1234.567 s,\n        fastest")
        );
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}

#[test]
fn what_else_was_set_is_told_with_its_figures() {
    let mut compared = compared(&["p"]);
    compared.conditions = Conditions { pools: PoolPages([4, 0]), ..Conditions::default() }.told();
    let figure = Figure { verdict: Verdict::Within, ..compared.sizes[0].faults };
    for row in &mut compared.sizes {
        row.folio = "16K+64K, 2M by madvise".to_owned();
        (row.huge_bytes, row.pool_bytes) = (Some(figure), Some(Figure { predicted: 8 << 20, ..figure }));
    }
    let text = section(&compared);
    for said in [
        "\nwith free huge pages: 2M=4\n",
        "\n16K+64K, 2M by madvise\n     123456789 ",
        "MiB of the pool in use at the most,\n        8.0 predicted (-102.8%).\n",
        "\nLeaves of 2 MiB: 3 of 3 within 5 %",
        "\nPages of the pool: 3 of 3 within 5 %",
    ] {
        assert!(text.contains(said), "no {said:?} in {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn the_summary_counts_what_holds() {
    let text = section(&compared(&["p"]));
    assert!(text.starts_with("p, 5 runs of each size\n"), "{text}");
    assert!(text.contains("\nFaults: 2 of 3 within 5 %"), "{text}");
    assert!(text.contains("\nPeak RSS: 0 of 3 within 3 %"), "{text}");
    assert!(text.contains("\nTime in faults: 2 of 3 within 15 %"), "{text}");
    assert!(text.contains("\nAdvice: 64K+2M, "), "{text}");
    assert!(
        text.contains("\n        Turn by turn -100.4 to +1234.5 %: cannot be told by these runs"),
        "{text}"
    );
    assert!(text.contains("\n2M: 7 faults of the system found no free folio.\n"), "{text}");
    assert!(text.contains("\n2M: the program ended with 0, 3.\n"), "{text}");
}

/// A time that is 20 % off may be as near as whole samples tell.
#[test]
fn what_is_as_near_as_samples_tell_is_not_called_within_15_percent() {
    let mut compared = compared(&["p"]);
    for row in &mut compared.sizes {
        let time = row.fault_ns.as_mut().expect("it was measured");
        (time.error_percent, time.verdict) = (20.0, Verdict::WithinGrain);
    }
    for (sampled_runs, grain) in [(7, "71.4 us"), (1, "500 us"), (1000, "500 ns")] {
        compared.sampled_runs = sampled_runs;
        let text = section(&compared);
        let said = format!("\nTime in faults: 3 of 3 within 15 %, or {grain} (whole samples)");
        assert!(text.contains(&said), "{text}");
    }
}

#[test]
fn how_well_samples_tell_the_time_stands_beside_it() {
    let mut compared = compared(&["p"]);
    compared.sizes[1].deviation_percent = None;
    let text = section(&compared);
    assert!(text.contains("ms: samples, and 12346 ns of a fault, over 1.123\n"), "{text}");
    assert!(text.contains("-102.8%  103.7%    123.5%  1000\n"), "{text}");
    assert!(text.contains("-102.8%  103.7%         -  1000\n"), "too few runs: {text}");
    compared.sampling_percent = None;
    assert!(section(&compared).contains("12346 ns of a fault\n"), "what samples add is not known");
}

#[test]
fn further_turns_stand_in_the_place_of_the_first_ones() {
    let mut compared = compared(&["p"]);
    let advice = compared.advice.as_mut().unwrap();
    let between_percent = (-20.4, 1234.5);
    let first = Against { folio: "128K".to_owned(), turns: 1600, longer_percent: -10.5, between_percent };
    advice.run_off = Some(RunOff { against: vec![first] });
    let line = "\n        1600 further turns: beside 128K -10.5 %, -20.4 to +1234.5 %: ";
    for (verdict, said) in [
        (Verdict::Within, "within 2 %.\n"),
        (Verdict::WithinSpread, "open.\n"),
        (Verdict::Missed, "slower.\n"),
    ] {
        compared.advice.as_mut().unwrap().verdict = verdict;
        let text = section(&compared);
        assert!(text.contains(&(line.to_owned() + said)), "{text}");
        assert!(
            !text.contains("Turn by turn") && text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
    }
}
