//! The page of figures.

use std::fs;

use lab::bench::row::Row;
use lab::bench::table::with_kernel;
use lab::report::page::text;
use serde_json::json;

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
    text(&kept(&[rows]), notes.path()).unwrap().newest
}

fn lines<'a>(page: &'a str, start: &str) -> Vec<&'a str> {
    page.lines().filter(|line| line.starts_with(start)).collect()
}

#[test]
fn a_missed_figure_and_a_faster_arm_stand_at_the_top() {
    let page = page(6e6);
    let (top, rest) = page.split_once("## What was measured where?").unwrap();
    assert_eq!(lines(top, "| unmap | folios of 4 KiB, frames in sequence").len(), 1, "{top}");
    assert!(top.contains("| 30 times | `4KiB/cold` 0.50 times (0 of 1) | 1 | changed |"), "{top}");
    let slower =
        "| unmap | time | quire | `4KiB/cold` 2.00 (6.00 ms, linux 6.18 3.00 ms; 1 of 1) | 1 | changed |";
    assert!(top.contains(slower), "{top}");
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
    assert!(rest.contains("| 30 times | run 1: 3000 times `4KiB/cold` (1 of 1; changed) |"), "{rest}");
    assert!(rest.contains("| not measured |"), "goals without data are named too");
}

#[test]
fn what_was_missed_with_the_code_of_today_stands_before_all_else() {
    let now = lab::bench::code::hash(lab::bench::experiments::unmap::EXPERIMENT.code);
    let missed = |code: &str, case: &str| {
        let rows =
            [("quire", 6e6), ("linux", 3e6)].map(|(arm, time)| row("unmap", case, arm, "time", &[time]));
        rows.map(|row| Row { commit: code.to_owned(), code: code.to_owned(), ..row }).to_vec()
    };
    let both = [missed("other", "64KiB/cold"), missed(&now, "4KiB/cold")];
    let page = text(&kept(&both), tempfile::tempdir().unwrap().path()).unwrap().newest;
    assert!(
        page.contains("The code of today was measured in 1 of ") && page.contains("experiments: `unmap`."),
        "{page}"
    );
    let (top, _) = page.split_once("## What was measured where?").unwrap();
    for list in top.split("\n### ").skip(1) {
        let (todays, older) = list.split_once("With older code, not measured since:").unwrap();
        assert!(todays.contains("With the code of today:"), "{list}");
        assert!(todays.contains("`4KiB/cold` ") && !todays.contains("`64KiB/cold` "), "{list}");
        assert!(older.contains("`64KiB/cold` ") && !older.contains("`4KiB/cold` "), "{list}");
    }
    let older = text(&kept(&both[..1]), tempfile::tempdir().unwrap().path()).unwrap().newest;
    assert!(older.contains("The code of today was measured in 0 of "), "{older}");
    assert!(!older.contains("With the code of today:"), "{older}");
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
        lines(&text(&kept(&[vec![row]]), notes.path()).unwrap().newest, "| `4KiB` |").join("\n")
    };
    assert!(of(&now).ends_with("| 1 | same |"), "{}", of(&now));
    assert!(of("other").ends_with("| 1 | changed |"));
    assert!(of("").ends_with("| 1 | unknown |"));
}

/// A row of `unmap` at a commit, with code of its own.
fn at(commit: &str, case: &str, arm: &str, samples: &[f64]) -> Row {
    let row = row("unmap", case, arm, "time", samples);
    Row { commit: commit.to_owned(), code: format!("code of {commit}"), ..row }
}

#[test]
fn cases_and_launches_that_lose_stand_together() {
    let rows = ["4KiB/cold", "8KiB/cold"];
    let rows =
        rows.map(|case| [("quire", 4e6), ("linux", 2e6)].map(|(arm, time)| at("1111", case, arm, &[time])));
    let page = pages(&[rows.concat()]).newest;
    let (top, _) = page.split_once("## What was measured where?").unwrap();
    let alike = "`4KiB/cold` 2.00 (4.00 ms, linux 6.18 2.00 ms; 1 of 1), `8KiB/cold` 2.00 (";
    assert_eq!(top.matches(alike).count(), 1, "{top}");
}

fn pages(launches: &[Vec<Row>]) -> lab::report::page::Pages {
    let notes = tempfile::tempdir().unwrap();
    fs::write(notes.path().join("older.md"), "The older runs.\n").unwrap();
    let mut all = kept(launches);
    for results in &mut all {
        // The first digit of the commit is the day.
        results.header.taken = format!("2026-01-0{}", &results.header.commit[..1]);
    }
    text(&all, notes.path()).unwrap()
}

#[test]
fn a_run_that_is_not_the_newest_of_its_processor_stands_on_the_second_page() {
    let launches = [
        vec![at("1111", "4KiB", "quire", &[1e6]), at("1111", "8KiB/cold", "quire", &[7e6])],
        vec![at("2222", "4KiB", "quire", &[2e6])],
    ];
    let pages = pages(&launches);
    assert_eq!(
        lines(&pages.newest, "| `4KiB` |"),
        ["| `4KiB` | 2.00 ms (samples 2.00 ms..2.00 ms) | 2 | changed |"]
    );
    assert!(lines(&pages.newest, "| `8KiB/cold` |").is_empty(), "{}", pages.newest);
    assert_eq!(
        lines(&pages.older, "| `4KiB` |"),
        ["| `4KiB` | 1.00 ms (samples 1.00 ms..1.00 ms) | 1 | changed |"]
    );
    assert!(pages.older.contains("The older runs.") && pages.older.contains("7.00 ms"), "{}", pages.older);
    // Both runs are named on the first page, whose lists have cases of both.
    assert_eq!(lines(&pages.newest, "| 1 | unmap | A | 1111 |").len(), 1, "{}", pages.newest);
    assert_eq!(lines(&pages.newest, "| 2 | unmap | A | 2222 |").len(), 1);
    assert_eq!(lines(&pages.older, "| 2 | unmap |").len(), 0);
}

#[test]
fn brackets_are_the_launches_where_there_are_several() {
    let launch = |samples: &[f64]| vec![at("1111", "4KiB", "quire", samples)];
    let cells = |launches: &[Vec<Row>]| lines(&pages(launches).newest, "| `4KiB` |").join("");
    let one = cells(&[launch(&[1e6, 2e6, 9e6])]);
    assert!(one.contains("| 2.00 ms (samples 1.00 ms..9.00 ms) ! |"), "{one}");
    let two = cells(&[launch(&[1e6, 2e6, 9e6]), launch(&[1e6, 4e6, 9e6])]);
    assert!(two.contains("| 3.00 ms (2.00 ms..4.00 ms) |"), "{two}");
    let far = cells(&[launch(&[1e6, 4e6, 9e6])]);
    assert!(far.contains("| 4.00 ms (samples 1.00 ms..9.00 ms) !! |"), "{far}");
}

#[test]
fn what_is_left_after_an_estimate_that_did_not_hold_has_no_size() {
    let rest = |arm: &str, left: f64| Row { metric: "rest".to_owned(), ..at("1111", "4KiB", arm, &[left]) };
    let page = pages(&[vec![rest("quire", 2e6), rest("linux", -4e6)]]).newest;
    assert!(page.contains("| `4KiB` | rest | 2.00 ms | negative | 1 |"), "{page}");
    assert!(page.contains("In no case."), "nothing is compared with it: {page}");
}

#[test]
fn the_machine_is_described_with_the_settings_of_its_kernel() {
    let mut row = at("1111", "4KiB", "quire", &[1e6]);
    row.machine["settings"] = json!({ "preemption": "PREEMPT_DYNAMIC" });
    row.machine["mitigations"] = json!({ "spectre_v2": "Mitigation: Retpolines" });
    row.machine["init_on_alloc"] = json!(false);
    row.machine["thp"] =
        json!({ "enabled": "madvise", "defrag": "never", "sizes": { "64KiB": "always", "128KiB": "never" } });
    let page = pages(&[vec![row]]).newest;
    let words = page.split_whitespace().collect::<Vec<_>>().join(" ");
    let machine = "- A (runs 1): A CPU; 2 CPUs and 0 GiB; Linux 6.18.44-test, no init_on_alloc, preemption \
                   PREEMPT_DYNAMIC; weaknesses: spectre_v2 (Mitigation: Retpolines)";
    assert!(words.contains(machine), "{words}");
    assert!(page.contains("| madvise, defrag never, 64KiB always |"), "{page}");
}

#[test]
fn counts_without_which_times_mean_little_are_shown() {
    let counted = |experiment: &str, name: &str, count: u64| {
        let row = row(experiment, "unmap", "quire", "time", &[1e6]);
        vec![Row { counters: [(name.to_owned(), count)].into(), ..row }]
    };
    let page = |rows| text(&kept(&[rows]), tempfile::tempdir().unwrap().path()).unwrap().newest;
    let aged = page(counted("aged", "frames_in_sequence", 65_039));
    assert!(aged.contains("| `unmap` | frames_in_sequence | 65039 | 1 |"), "{aged}");
    let cleared = page(counted("first-touch", "bytes_cleared", 2 << 20));
    assert!(cleared.contains("| `unmap` | bytes_cleared | 2 MiB | 1 |"), "{cleared}");
    let other = page(counted("unmap", "frames_in_sequence", 65_039));
    assert!(!other.contains("65039"), "{other}");
}

#[test]
fn ratios_name_the_kernel() {
    let rows = [("quire", 1e6), ("linux", 2e6)].map(|(arm, time)| at("1111", "4KiB", arm, &[time]));
    let page = pages(&[rows.to_vec()]).newest;
    assert!(page.contains("| linux 6.18 / quire |"), "{page}");
    assert_eq!(with_kernel("linux-thp", Some("6.18.44")), "linux-thp 6.18");
    assert_eq!(with_kernel("linux-6.1-memcg", Some("6.18.44")), "linux-6.1-memcg", "has its own");
    assert_eq!(with_kernel("string", Some("6.18.44")), "string");
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
        let page = text(&kept(&[vec![row]]), tempfile::tempdir().unwrap().path()).unwrap().newest;
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
    let page = text(&all, tempfile::tempdir().unwrap().path()).unwrap().newest;
    assert_eq!(lines(&page, "| `step-4KiB` | rate | 100 ns ± 10.0 % |").len(), 1, "{page}");
}
