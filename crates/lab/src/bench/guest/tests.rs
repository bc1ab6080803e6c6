use super::archive::{self, Entry};
use super::arm::{FIRST, SOURCE};
use super::output::{Line, Report};
use super::rows::{self, Machine, ROWS};
use crate::bench::experiments::guest::EXPERIMENT;

#[test]
fn lines_of_the_program_are_told_from_others() {
    assert_eq!(Line::of("begin touch\r"), Some(Line::Begin("touch".to_owned())));
    let row = |name: &str, figure| Some(Line::Row(name.to_owned(), figure));
    assert_eq!(Line::of("row touch 2921.94 page\r"), row("touch", Ok(2921.94)));
    assert_eq!(Line::of("row fork n/a: fork: no\r"), row("fork", Err("fork: no".to_owned())));
    assert_eq!(Line::of("done"), Some(Line::Done));
    for other in ["", "row", "row touch", "row touch many page", "row touch inf page", "[ 1.0] done", "doner"]
    {
        assert_eq!(Line::of(other), None, "{other}");
    }
}

#[test]
fn a_run_keeps_rows_the_group_and_the_last_foreign_lines() {
    let mut report = Report::default();
    for number in 0..100 {
        report.line(&format!("noise {number}\r"));
    }
    for line in ["begin touch", "row touch 1 page", "begin fork", "panic"] {
        report.line(line);
    }
    assert_eq!(report.row("touch"), Some(&Ok(1.0)));
    assert_eq!(report.row("fork"), None);
    assert_eq!(report.group.as_deref(), Some("fork"));
    assert!(!report.done);
    assert_eq!((report.other.len(), report.other.last().map(String::as_str)), (40, Some("panic")));
}

#[test]
fn the_program_and_the_list_have_the_same_rows() {
    let mut at = 0;
    for machine in [Machine::Counts, Machine::Wall] {
        for group in rows::groups(machine) {
            let names: Vec<String> = rows::of(machine)
                .filter(|row| row.group == group)
                .map(|row| format!("\"{}\"", row.name))
                .collect();
            let written = format!("{{{}}}", names.join(", "));
            let line =
                SOURCE[at..].lines().find(|line| line.trim_start().starts_with(&format!("{{\"{group}\",")));
            let line = line.unwrap_or_else(|| panic!("no group {group} after the one before it"));
            assert!(line.contains(&written), "{group}: {line}");
            at += SOURCE[at..].find(line).unwrap_or(0);
        }
    }
    for row in rows::of(Machine::BootLibc) {
        assert!(SOURCE.contains(&format!("row {} %llu", row.name)), "{}", row.name);
    }
    for row in rows::of(Machine::Boot) {
        assert!(FIRST.contains(&format!("row(\"{}\", ", row.name)), "{}", row.name);
    }
}

#[test]
fn every_figure_to_reach_is_of_a_row() {
    for goal in EXPERIMENT.goals {
        for pattern in goal.cases {
            let is_for = ROWS.iter().filter(|row| goal.is_for(row.name) && goal.cases.contains(pattern));
            assert!(is_for.count() > 0, "{pattern}");
        }
        let metrics = ROWS.iter().filter(|row| goal.is_for(row.name)).map(|row| row.metric.names().0);
        for metric in metrics {
            assert_eq!(goal.figure, crate::bench::goal::Figure::Metric(metric), "{}", goal.what);
        }
    }
}

#[test]
fn an_archive_has_headers_names_and_contents_at_multiples_of_four() {
    let archive =
        archive::pack(&[Entry { path: "bin", bytes: None }, Entry { path: "bin/x", bytes: Some(b"hello") }]);
    assert_eq!(archive.len() % 4, 0);
    let starts: Vec<usize> =
        archive.windows(6).enumerate().filter(|(_, six)| six == b"070701").map(|(at, _)| at).collect();
    assert_eq!(starts, [0, 116, 116 + 116 + 8]);
    let field = |start: usize, index: usize| &archive[start + 6 + 8 * index..][..8];
    assert_eq!(field(0, 1), b"000041ed");
    assert_eq!(field(116, 1), b"000081ed");
    assert_eq!(field(116, 6), b"00000005");
    assert_eq!(field(116, 11), b"00000006");
    assert_eq!(&archive[116 + 110..][..6], b"bin/x\0");
    assert_eq!(&archive[116 + 116..][..8], b"hello\0\0\0");
    assert!(archive.ends_with(b"TRAILER!!!\0\0\0\0"));
}
