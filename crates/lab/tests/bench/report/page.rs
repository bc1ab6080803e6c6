//! The pages of figures.

use std::fs;

use lab::bench::row::Row;
use lab::bench::table::with_kernel;
use lab::report::page::{Pages, text};
use serde_json::json;

use super::{kept, row};

/// The pages of one launch of `unmap` in which `quire` takes `time` and `linux` 3 ms.
fn pages_of(time: f64) -> Pages {
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

/// The page of the one experiment that `pages` has.
fn of_one(pages: &Pages) -> &str {
    let [(_, page)] = pages.of_experiments.as_slice() else { panic!("one experiment") };
    page
}

fn lines<'a>(page: &'a str, start: &str) -> Vec<&'a str> {
    page.lines().filter(|line| line.starts_with(start)).collect()
}

/// What follows the lists of goals missed and cases lost.
const GOALS: &str = "## Which figures were to be reached?";

#[test]
fn a_missed_figure_and_a_faster_arm_stand_at_the_top() {
    let pages = pages_of(6e6);
    let (top, _) = pages.first.split_once(GOALS).unwrap();
    let name = "[unmap](measured/unmap.md)";
    assert_eq!(lines(top, &format!("| {name} | folios of 4 KiB, frames in sequence")).len(), 1, "{top}");
    assert!(top.contains("| 30 times | `4KiB/cold` 0.50 times (0 of 1) | 1 | changed |"), "{top}");
    let slower = format!(
        "| {name} | time | quire | `4KiB/cold` 2.00 (6.00 ms, linux 6.18 3.00 ms; 1 of 1) | 1 | changed |"
    );
    assert!(top.contains(&slower), "{top}");
    assert!(top.contains("The head."), "{top}");
    let page = of_one(&pages);
    assert!(page.starts_with("# Measured: `quire bench unmap`\n") && page.contains("A note."), "{page}");
    assert!(page.contains("Skipped: `linux` at `8KiB`: a reason"), "{page}");
}

#[test]
fn what_is_reached_stands_in_the_list_of_goals_alone() {
    let pages = pages_of(1e3);
    let (top, rest) = pages.first.split_once(GOALS).unwrap();
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
    let page = text(&kept(&both), tempfile::tempdir().unwrap().path()).unwrap().first;
    assert!(
        page.contains("The code of today was measured in 1 of ") && page.contains("experiments: `unmap`."),
        "{page}"
    );
    let (top, _) = page.split_once(GOALS).unwrap();
    for list in top.split("\n### ").skip(1) {
        let (todays, older) =
            list.split_once("With other code, not measured since on that processor:").unwrap();
        assert!(todays.contains("With the code of today:"), "{list}");
        assert!(todays.contains("`4KiB/cold` ") && !todays.contains("`64KiB/cold` "), "{list}");
        assert!(older.contains("`64KiB/cold` ") && !older.contains("`4KiB/cold` "), "{list}");
    }
    let older = text(&kept(&both[..1]), tempfile::tempdir().unwrap().path()).unwrap().first;
    assert!(older.contains("The code of today was measured in 0 of "), "{older}");
    assert!(!older.contains("With the code of today:"), "{older}");
}

#[test]
fn experiments_without_a_kept_run_are_named() {
    let page = pages_of(1e3).first;
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
        lines(of_one(&text(&kept(&[vec![row]]), notes.path()).unwrap()), "| `4KiB` |").join("\n")
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
    let page = pages(&[rows.concat()]).first;
    let (top, _) = page.split_once(GOALS).unwrap();
    let alike = "`4KiB/cold` 2.00 (4.00 ms, linux 6.18 2.00 ms; 1 of 1), `8KiB/cold` 2.00 (";
    assert_eq!(top.matches(alike).count(), 1, "{top}");
}

fn pages(launches: &[Vec<Row>]) -> lab::report::page::Pages {
    let notes = tempfile::tempdir().unwrap();
    let mut all = kept(launches);
    for results in &mut all {
        // The first digit of the commit is the day.
        results.header.taken = format!("2026-01-0{}", &results.header.commit[..1]);
    }
    text(&all, notes.path()).unwrap()
}

#[test]
fn a_run_that_is_not_the_newest_of_its_processor_stands_below_the_newest() {
    let launches = [
        vec![at("1111", "4KiB", "quire", &[1e6]), at("1111", "8KiB/cold", "quire", &[7e6])],
        vec![at("2222", "4KiB", "quire", &[2e6])],
    ];
    let pages = pages(&launches);
    let (newest, older) = of_one(&pages).split_once("## The runs before").unwrap();
    assert_eq!(
        lines(newest, "| `4KiB` |"),
        ["| `4KiB` | 2.00 ms (samples 2.00 ms..2.00 ms) | 2 | changed |"]
    );
    assert!(lines(newest, "| `8KiB/cold` |").is_empty(), "{newest}");
    assert_eq!(lines(older, "| `4KiB` |"), ["| `4KiB` | 1.00 ms (samples 1.00 ms..1.00 ms) | 1 | changed |"]);
    assert!(older.contains("7.00 ms"), "{older}");
    // Both runs are named on the first page, whose lists have cases of both.
    assert_eq!(lines(&pages.first, "| 1 | unmap | A | 1111 |").len(), 1, "{}", pages.first);
    assert_eq!(lines(&pages.first, "| 2 | unmap | A | 2222 |").len(), 1);
    // On its own page each stands below its figures.
    assert_eq!((lines(newest, "| 1 | unmap |").len(), lines(newest, "| 2 | unmap |").len()), (0, 1));
    assert_eq!((lines(older, "| 1 | unmap |").len(), lines(older, "| 2 | unmap |").len()), (1, 0));
}

/// A machine has the same letter on all pages, whichever runs a table shows.
#[test]
fn a_letter_means_one_machine() {
    let on = |commit: &str, cpu: &str| {
        let mut row = at(commit, "4KiB", "quire", &[1e6]);
        row.machine["cpu"] = json!(cpu);
        vec![row]
    };
    let pages = pages(&[on("1111", "X CPU"), on("2222", "Y CPU"), on("3333", "Y CPU")]);
    let (newest, older) = of_one(&pages).split_once("## The runs before").unwrap();
    assert!(newest.contains("- A (runs 1): X CPU;") && newest.contains("- B (runs 3): Y CPU;"), "{newest}");
    assert!(older.contains("- B (runs 2): Y CPU;") && !older.contains("- A "), "{older}");
}

#[test]
fn brackets_are_the_launches_where_there_are_several() {
    let launch = |samples: &[f64]| vec![at("1111", "4KiB", "quire", samples)];
    let cells = |launches: &[Vec<Row>]| lines(of_one(&pages(launches)), "| `4KiB` |").join("");
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
    let pages = pages(&[vec![rest("quire", 2e6), rest("linux", -4e6)]]);
    let page = of_one(&pages);
    assert!(page.contains("| `4KiB` | rest | 2.00 ms | negative | 1 |"), "{page}");
    assert!(pages.first.contains("In no case."), "nothing is compared with it: {}", pages.first);
}

#[test]
fn the_machine_is_described_with_the_settings_of_its_kernel() {
    let mut row = at("1111", "4KiB", "quire", &[1e6]);
    row.machine["settings"] = json!({ "preemption": "PREEMPT_DYNAMIC" });
    row.machine["mitigations"] = json!({ "spectre_v2": "Mitigation: Retpolines" });
    row.machine["init_on_alloc"] = json!(false);
    row.machine["thp"] =
        json!({ "enabled": "madvise", "defrag": "never", "sizes": { "64KiB": "always", "128KiB": "never" } });
    let page = pages(&[vec![row]]).first;
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
    let page = |rows| of_one(&text(&kept(&[rows]), tempfile::tempdir().unwrap().path()).unwrap()).to_owned();
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
    let pages = pages(&[rows.to_vec()]);
    let page = of_one(&pages);
    assert!(page.contains("| linux 6.18 / quire |"), "{page}");
    assert_eq!(with_kernel("linux-thp", Some("6.18.44")), "linux-thp 6.18");
    assert_eq!(with_kernel("linux-6.1-memcg", Some("6.18.44")), "linux-6.1-memcg", "has its own");
    assert_eq!(with_kernel("string", Some("6.18.44")), "string");
}

#[test]
fn prose_is_as_wide_as_other_pages() {
    let pages = pages_of(1e3);
    let page = format!("{}\n{}", pages.first, of_one(&pages));
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
        let pages = text(&kept(&[vec![row]]), tempfile::tempdir().unwrap().path()).unwrap();
        of_one(&pages).split_whitespace().collect::<Vec<_>>().join(" ")
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
    let pages = text(&all, tempfile::tempdir().unwrap().path()).unwrap();
    let page = of_one(&pages);
    assert_eq!(lines(page, "| `step-4KiB` | rate | 100 ns ± 10.0 % |").len(), 1, "{page}");
}
