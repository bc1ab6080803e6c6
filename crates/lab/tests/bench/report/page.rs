//! The page of figures.

use std::fs;

use lab::bench::row::Row;
use lab::report::page::text;

use super::{kept, row};

/// The page of one launch of `unmap` in which `quire` takes `time` and `linux` 3 ms.
fn page(time: f64) -> String {
    let notes = tempfile::tempdir().unwrap();
    fs::write(notes.path().join("head.md"), "The head.\n").unwrap();
    fs::write(notes.path().join("unmap.md"), "A note.\n").unwrap();
    let rows = vec![
        row("unmap", "4KiB/cold", "quire", "time", &[time]),
        row("unmap", "4KiB/cold", "linux", "time", &[3e6]),
        row("unmap", "8KiB", "linux", "time", &[]),
    ];
    text(&kept(&[rows]), notes.path()).unwrap()
}

fn lines<'a>(page: &'a str, start: &str) -> Vec<&'a str> {
    page.lines().filter(|line| line.starts_with(start)).collect()
}

#[test]
fn a_missed_figure_and_a_faster_arm_stand_at_the_top() {
    let page = page(6e6);
    let (top, rest) = page.split_once("## What was measured where?").unwrap();
    assert_eq!(lines(top, "| unmap | folios of 4 KiB, frames in sequence").len(), 1, "{top}");
    assert!(top.contains("| `4KiB/cold` | 30 times | 0.50 times | 0 of 1 |"), "{top}");
    assert!(
        top.contains("| unmap | `4KiB/cold` | time | 6.00 ms (quire) | 3.00 ms (linux) | 2.00 | 1 of 1 |"),
        "{top}"
    );
    assert!(top.contains("The head.") && rest.contains("A note."));
    assert!(rest.contains("Skipped: `linux` at `8KiB`: a reason"), "{rest}");
}

#[test]
fn what_is_reached_stands_in_the_list_of_goals_alone() {
    let page = page(1e3);
    let (top, rest) = page.split_once("## What was measured where?").unwrap();
    assert!(
        top.contains("Every figure was reached in every launch.") && top.contains("In no case."),
        "{top}"
    );
    assert!(rest.contains("| 30 times | 3000 times (`4KiB/cold`) | 1 of 1 | 1 | changed |"), "{rest}");
    assert!(rest.contains("| not measured |"), "goals without data are named too");
}

#[test]
fn experiments_without_a_kept_run_are_named() {
    let page = page(1e3);
    let (_, rest) = page.split_once("No run is kept of:").unwrap();
    let (named, _) = rest.split_once("\n\n").unwrap();
    assert!(named.contains("`fault`") && !named.contains("`unmap`"), "{named}");
}

#[test]
fn each_row_says_whether_its_code_is_that_of_today() {
    let experiment = lab::bench::experiments::unmap::EXPERIMENT;
    let now = lab::bench::code::hash(experiment.code);
    let of = |code: &str| {
        let row = Row { code: code.to_owned(), ..row("unmap", "4KiB", "quire", "time", &[1e6]) };
        let notes = tempfile::tempdir().unwrap();
        lines(&text(&kept(&[vec![row]]), notes.path()).unwrap(), "| `4KiB` |").join("\n")
    };
    assert!(of(&now).ends_with("| 1 | same |"), "{}", of(&now));
    assert!(of("other").ends_with("| 1 | changed |"));
    assert!(of("").ends_with("| 1 | unknown |"));
}

#[test]
fn prose_is_as_wide_as_other_pages() {
    let page = page(1e3);
    let long = page.lines().filter(|line| !line.starts_with('|') && line.chars().count() > 100);
    assert_eq!(long.collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn what_only_one_side_pays_stands_under_its_ratios() {
    let said = |experiment: &str, machine: &str| {
        let mut row = row(experiment, "4KiB", "quire", "time", &[1e3]);
        if let Ok(crossings) = serde_json::from_str::<serde_json::Value>(machine) {
            row.machine["crossings"] = crossings;
        }
        let page = text(&kept(&[vec![row]]), tempfile::tempdir().unwrap().path()).unwrap();
        page.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let page = said("fault", r#"{ "call": 1.5, "trap": 480.0, "system_call": 95.0 }"#);
    let prices = "here a call that does nothing takes 1.50 ns, a trap 480 ns, a system call 95.0 ns.";
    assert!(page.contains("Only the arms of Linux pay for traps") && page.contains(prices), "{page}");
    assert!(
        said("brk-test", "")
            .contains("pay for system calls, where those of Quire have calls; here their prices were not")
    );
    assert!(!said("time-bench", "").contains("Only the arms of Linux"));
}

#[test]
fn a_rate_has_the_deviation_of_its_samples() {
    let launch = |samples: &[f64]| vec![row("page-test", "step-4KiB", "quire", "rate", samples)];
    let all = kept(&[launch(&[90.0, 100.0, 110.0]), launch(&[95.0, 100.0, 105.0]), launch(&[100.0])]);
    assert_eq!(all[0].series[0].deviations, [(0, 0.1), (1, 0.05)]);
    let page = text(&all, tempfile::tempdir().unwrap().path()).unwrap();
    assert_eq!(lines(&page, "| `step-4KiB` | rate | 100 ns ± 10.0 % |").len(), 1, "{page}");
}
