//! `quire compare` as a user runs it.

use std::process::Command;

use crate::{alone, may_change_settings, pages, rows, settings, settled, text as text_of};

fn compare(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    command.arg("compare").args(arguments).env("COLUMNS", "80");
    command
}

#[test]
fn a_comparison_ends_with_a_table_and_the_cases_that_are_lost() {
    let one_at_a_time = alone();
    let before = settled();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("rows.json");
    let file_name = file.to_str().unwrap();
    let output = compare(&["--smoke", "--only", "teardown", "--json", file_name]).output().unwrap();
    let shown = text_of(&output.stdout);
    assert!(output.status.success(), "{}", text_of(&output.stderr));
    assert!(shown.starts_with("machine: "), "{shown}");
    let is_wide = |line: &&str| line.starts_with(['│', '┌']) && line.chars().count() > 80;
    assert_eq!(shown.lines().find(is_wide), None, "{shown}");
    for word in ["munmap 1 GiB", "2 MiB mapped by PMDs", "Linux ", "published by: Hildenbrand 2024 v1"] {
        assert!(shown.contains(word), "no `{word}` in {shown}");
    }

    // The list of lost cases says what the figures say.
    let rows = rows(&std::fs::read_to_string(&file).unwrap());
    let time = |case: &str, arm: &str| {
        let wanted = |row: &&lab::bench::row::Row| row.case == case && row.arm == arm && row.metric == "time";
        rows.iter().find(wanted).and_then(|row| row.median)
    };
    let unfilled: String = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    for case in ["4KiB", "64KiB", "2MiB-pte", "2MiB-pmd"].map(|folio| format!("{folio}/cold")) {
        let case = case.as_str();
        let own = time(case, "quire").unwrap();
        let rivals = ["linux", "per-page", "runs"].into_iter().filter_map(|arm| time(case, arm));
        let lost = rivals.fold(f64::MAX, f64::min) * 1.005 <= own;
        assert_eq!(unfilled.contains(&format!("unmap {case}:")), lost, "{shown}");
    }
    assert!(rows.iter().all(|row| row.experiment == "unmap"));
    if may_change_settings() {
        // Linux may not find memory for the folios, even after it moved pages together: then the reason is said.
        let told = unfilled.contains("skipped: linux at 64KiB/cold: only");
        assert!(time("64KiB/cold", "linux").is_some() || told, "{shown}");
    } else {
        assert!(shown.contains("skipped: linux"), "{shown}");
    }
    assert_eq!(settings(), before);
    drop(one_at_a_time);
    pages::show(&[&file], directory.path());
}

#[test]
fn a_system_that_does_not_exist_is_refused_with_the_names_of_those_that_do() {
    let output = compare(&["--only", "swap"]).output().unwrap();
    assert!(!output.status.success() && output.stdout.is_empty());
    let told = text_of(&output.stderr);
    assert!(told.contains("no system has `swap`") && told.contains("1 pools of 2 MiB (HVO)"), "{told}");
}
