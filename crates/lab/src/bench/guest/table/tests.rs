use serde_json::Map;

use super::*;
use crate::bench::experiment::Better;
use crate::bench::experiments::guest::EXPERIMENT;
use crate::bench::metric::Counters;

fn row(name: &str, arm: &str, figure: Result<f64, &str>) -> Row {
    let spec = ROWS.iter().find(|spec| spec.name == name).expect("a row of the program");
    let (metric, unit) = spec.metric.names();
    Row {
        experiment: "guest".to_owned(),
        case: name.to_owned(),
        arm: arm.to_owned(),
        metric: metric.to_owned(),
        unit: unit.to_owned(),
        better: Better::Lower,
        samples: figure.into_iter().collect(),
        median: figure.ok(),
        counters: Counters::new(),
        params: Map::new(),
        machine: serde_json::Value::Null,
        commit: String::new(),
        code: String::new(),
        runner: String::new(),
        skipped: figure.err().map(str::to_owned),
    }
}

/// The names of the rows, from top to bottom, with their verdicts.
fn order(rows: &[Row]) -> Vec<(String, String)> {
    let text = sheet(&EXPERIMENT, rows).fit(None);
    let cells = |line: &str| -> Vec<String> {
        line.split(['│', '┆']).map(|cell| cell.trim().to_owned()).collect()
    };
    let lines = text.lines().filter(|line| line.starts_with('│')).skip(1).map(cells);
    lines.map(|cells| (cells[1].clone(), cells[4].clone())).collect()
}

#[test]
fn the_worst_rows_stand_first() {
    let pair = |name, linux, quire| [row(name, "linux-6.1", Ok(linux)), row(name, "quire", quire)];
    let rows: Vec<Row> = [
        pair("null-call", 300.0, Ok(100.0)),
        pair("touch", 3300.0, Ok(1650.0)),
        pair("munmap/4KiB", 1000.0, Ok(14.0)),
        pair("single", 18_000.0, Ok(24_000.0)),
        pair("fork", 100.0, Err("no fork")),
    ]
    .concat();
    let order = order(&rows);
    let expected = [
        ("single", "4.00 times too much"),
        ("touch", "1.50 times too much"),
        ("fork", "n/a"),
        ("null-call", "no worse"),
        ("munmap/4KiB", "reached"),
    ];
    assert_eq!(order, expected.map(|(name, verdict)| (name.to_owned(), verdict.to_owned())));
    let measured = Measured { rows, about: vec![("quire", "a kernel")] };
    let text = render(&EXPERIMENT, &measured);
    assert!(text.contains("n/a: quire at fork: no fork"), "{text}");
}

#[test]
fn so_many_times_as_fast_is_a_ratio_of_times() {
    let with = |linux, quire| [row("threads", "linux-6.1", Ok(linux)), row("threads", "quire", Ok(quire))];
    assert_eq!(order(&with(100.0, 50.0))[0].1, "reached");
    assert_eq!(order(&with(100.0, 100.0))[0].1, "2.00 times too much");
    assert_eq!(order(&[row("threads", "quire", Ok(1.0))])[0].1, "not compared");
}

#[test]
fn a_figure_to_reach_has_the_unit_of_its_row() {
    let rows = ["boot", "boot/time", "memory"].map(|name| row(name, "quire", Ok(1.0)));
    let text = sheet(&EXPERIMENT, &rows).fit(None);
    for figure in ["at most 50.00 M ", "at most 50.0 ms ", "at most 4096 KiB "] {
        assert!(text.contains(figure), "{figure} in {text}");
    }
}
