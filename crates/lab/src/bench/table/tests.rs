use serde_json::{Map, json};

use super::{heads, render};
use crate::bench::experiment::{Better, Counters, Experiment, Measured};
use crate::bench::row::Row;
use crate::output::duration;

const QUESTION: Experiment = Experiment {
    name: "question",
    question: "How long?",
    expectation: "Not long.",
    baseline: &["slow", "slower"],
    per: "call",
    notes: &["A note."],
    own: &["first"],
    apart: &[],
    goals: &[],
    file: "",
    code: &[],
    run: |_, _| Ok(Measured { rows: Vec::new(), about: Vec::new() }),
    appendix: None,
};

fn row(arm: &str, samples: &[f64], skipped: Option<&str>) -> Row {
    let mut params = Map::new();
    params.insert("pages".to_owned(), json!(10));
    Row {
        experiment: "question".to_owned(),
        case: "case".to_owned(),
        arm: arm.to_owned(),
        metric: "time".to_owned(),
        unit: "ns".to_owned(),
        better: Better::Lower,
        samples: samples.to_vec(),
        median: samples.first().copied(),
        counters: Counters::new(),
        params,
        machine: json!({}),
        commit: String::new(),
        code: String::new(),
        runner: String::new(),
        skipped: skipped.map(str::to_owned),
    }
}

#[test]
fn the_ratio_is_to_the_fastest_baseline_arm() {
    let rows = vec![row("slow", &[40.0], None), row("slower", &[80.0], None), row("quick", &[10.0], None)];
    let text = render(&QUESTION, &Measured { rows, about: vec![("quick", "Everything.")] });
    let line = |arm: &str| text.lines().find(|line| line.contains(arm) && line.contains("..")).unwrap();
    assert!(line("quick").contains("4.00"), "{text}");
    assert!(line("slow ").contains("1.00"), "{text}");
    assert!(line("slower").contains("0.50"), "{text}");
    assert!(
        text.contains("fastest of slow, slower")
            && text.contains("quick: Everything.")
            && text.contains("A note.")
    );
    assert!(line("quick").contains("1.00 ns ") && text.contains("per page"), "{text}");
}

#[test]
fn what_was_skipped_says_why() {
    let rows = vec![row("slow", &[], Some("not on this machine")), row("quick", &[10.0], None)];
    let text = render(&QUESTION, &Measured { rows, about: Vec::new() });
    assert!(text.contains("skipped: slow at case: not on this machine"), "{text}");
}

#[test]
fn durations_keep_three_digits() {
    let shown = [0.5, 9.99, 12.34, 999.0, 1e3, 12_345.0, 123_456_789.0, 2.5e9].map(duration);
    assert_eq!(shown, ["0.50 ns", "9.99 ns", "12.3 ns", "999 ns", "1.00 us", "12.3 us", "123 ms", "2.50 s"]);
}

#[test]
fn samples_far_above_the_least_are_marked() {
    let shown = |samples: &[f64]| {
        render(&QUESTION, &Measured { rows: vec![row("first", samples, None)], about: Vec::new() })
    };
    let even = shown(&[1.0, 2.0, 3.0]);
    assert!(!even.contains(" !") && !even.contains("behind a range"), "{even}");
    let one = shown(&[1.0, 2.0, 4.0]);
    assert!(
        one.contains("4.00 ns !") && !one.contains("4.00 ns !!") && one.contains("behind a range"),
        "{one}"
    );
    assert!(shown(&[1.0, 4.0, 4.0]).contains("4.00 ns !!"));
}

#[test]
fn ratios_with_the_running_kernel_name_its_version() {
    let mut row = row("slow", &[1.0], None);
    row.machine = json!({ "kernel": "6.18.44-test" });
    let named = heads(&["case", "linux / quire", "quire / linux-thp"], &[row]);
    assert_eq!(named, ["case", "linux 6.18 / quire", "quire / linux-thp 6.18"]);
}
