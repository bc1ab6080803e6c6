//! What `quire report` keeps and writes.

mod judge;
mod page;

use lab::bench::experiment::{Better, Counters};
use lab::bench::row::Row;
use lab::report::results::{Results, keep, load};
use serde_json::{Map, json};

/// A row of a launch of `experiment`, of a release build at a commit.
pub(crate) fn row(experiment: &str, case: &str, arm: &str, metric: &str, samples: &[f64]) -> Row {
    Row {
        experiment: experiment.to_owned(),
        case: case.to_owned(),
        arm: arm.to_owned(),
        metric: metric.to_owned(),
        unit: "ns".to_owned(),
        better: Better::Lower,
        samples: samples.to_vec(),
        median: None,
        counters: Counters::new(),
        params: Map::new(),
        machine: json!({ "cpu": "A CPU", "cpus": 2, "kernel": "6.18.44-test", "opt_level": "3", "load_at_start": 0.5, "cpu_of_others": 0.01234, "cpu_stolen": 0.0 }),
        commit: "0123456789ab".to_owned(),
        code: "code".to_owned(),
        runner: "runner".to_owned(),
        skipped: samples.is_empty().then(|| "a reason".to_owned()),
    }
}

/// The results of `launches`.
fn kept(launches: &[Vec<Row>]) -> Vec<Results> {
    let folder = tempfile::tempdir().unwrap();
    for rows in launches {
        keep(std::slice::from_ref(rows), folder.path(), None).unwrap();
    }
    load(folder.path()).unwrap()
}

#[test]
fn launches_of_one_commit_are_kept_in_one_file_and_read_back() {
    let first = vec![
        row("unmap", "4KiB", "quire", "time", &[3.0, 1.0, 2.0]),
        row("unmap", "4KiB", "linux", "time", &[]),
    ];
    let second = vec![row("unmap", "4KiB", "quire", "time", &[12345.6])];
    let all = kept(&[first, second]);
    let [results] = all.as_slice() else { panic!("one file") };
    assert_eq!(results.header.launches.len(), 2);
    let launch = &results.header.launches[0];
    assert_eq!((launch.load, launch.others, launch.stolen), (Some(0.5), Some(0.012), Some(0.0)));
    let [quire, linux] = results.series.as_slice() else { panic!("two series") };
    assert_eq!((quire.median_of(0), quire.median_of(1)), (Some(2.0), Some(12350.0)), "four digits");
    let all = quire.of_all().unwrap();
    assert_eq!((all.min, all.max, all.count), (1.0, 12350.0, 4));
    assert_eq!((linux.launches.len(), linux.skipped.as_deref()), (0, Some("a reason")));
}

#[test]
fn figures_that_say_nothing_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut smoke = row("unmap", "4KiB", "quire", "time", &[1.0]);
    smoke.params.insert("smoke".to_owned(), json!(true));
    let quick = Row { machine: json!({ "opt_level": "1" }), ..row("unmap", "4KiB", "quire", "time", &[1.0]) };
    let dirty = Row { commit: "0123-dirty".to_owned(), ..row("unmap", "4KiB", "quire", "time", &[1.0]) };
    for row in [smoke, quick, dirty] {
        assert!(keep(&[vec![row]], folder.path(), None).is_err());
    }
    keep(&[vec![row("unmap", "4KiB", "quire", "time", &[1.0])]], folder.path(), None).unwrap();
    let other = Row { code: "other".to_owned(), ..row("unmap", "4KiB", "quire", "time", &[1.0]) };
    assert!(keep(&[vec![other]], folder.path(), None).is_err(), "one commit has one code");
}

#[test]
fn a_launch_in_which_no_arm_ran_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let rows = ["quire", "linux"].map(|arm| row("khugepaged", "gcc", arm, "time", &[]));
    let error = keep(&[rows.to_vec()], folder.path(), None).unwrap_err().to_string();
    assert_eq!(error, "no arm of khugepaged ran: a reason");
    assert!(load(folder.path()).unwrap().is_empty());
    // What was fine is not kept either: it would be counted twice when the rest is mended.
    let fine = row("unmap", "4KiB", "quire", "time", &[1.0]);
    let one_file = [[fine.clone()].as_slice(), &rows].concat();
    for files in [vec![one_file], vec![vec![fine.clone()], rows.to_vec()]] {
        assert!(keep(&files, folder.path(), None).is_err());
        assert!(load(folder.path()).unwrap().is_empty());
    }
    // Launches of several files are in one, however they are added.
    keep(&[vec![fine.clone()], vec![fine]], folder.path(), None).unwrap();
    assert_eq!(load(folder.path()).unwrap()[0].header.launches.len(), 2);
}

#[test]
fn the_largest_count_of_all_launches_is_kept() {
    let launch = |count| {
        let row = row("unmap", "4KiB", "quire", "time", &[1.0]);
        vec![Row { counters: Counters::from([("ipis".to_owned(), count)]), ..row }]
    };
    let all = kept(&[launch(3), launch(1)]);
    assert_eq!(all[0].series[0].counters["ipis"], 3);
}

#[test]
fn experiments_and_other_code_have_files_of_their_own() {
    let fault = row("fault", "4KiB", "quire", "time", &[1.0]);
    let later = |code: &str, runner: &str| Row {
        commit: "ba9876543210".to_owned(),
        code: code.to_owned(),
        runner: runner.to_owned(),
        ..fault.clone()
    };
    let unmap = row("unmap", "4KiB", "quire", "time", &[1.0]);
    let files = |later: Row| kept(&[vec![unmap.clone(), fault.clone()], vec![later]]).len();
    assert_eq!(files(later("other", "runner")), 3, "the library has changed");
    assert_eq!(files(later("code", "other")), 3, "the way of measuring has changed");
    let unknown = Row { runner: String::new(), ..fault.clone() };
    assert_eq!(kept(&[vec![unknown], vec![later("code", "")]]).len(), 2, "may have changed");
}

#[test]
fn launches_of_later_commits_add_up_while_what_is_measured_and_measures_is_the_same() {
    let first = row("unmap", "4KiB", "quire", "time", &[1.0]);
    let later = Row { commit: "ba9876543210".to_owned(), samples: vec![3.0], ..first.clone() };
    let again = Row { commit: "ba9876543210".to_owned(), samples: vec![5.0], ..first.clone() };
    let all = kept(&[vec![first], vec![later], vec![again]]);
    let [results] = all.as_slice() else { panic!("one file") };
    assert_eq!(results.header.commit, "0123456789ab");
    let commits: Vec<_> = results.header.launches.iter().map(|launch| launch.commit.as_deref()).collect();
    assert_eq!(commits, [None, Some("ba9876543210"), Some("ba9876543210")]);
    assert_eq!(results.series[0].of_all().unwrap().median, 3.0);
}

#[test]
fn every_experiment_names_code_that_exists() {
    for experiment in lab::bench::experiments::ALL {
        assert!(
            !lab::bench::code::hash(experiment.code).is_empty(),
            "{}: a path of `code` has no source",
            experiment.name
        );
        let runner = lab::bench::code::hash(&[lab::bench::code::RUNNER, &[experiment.file]]);
        assert!(!runner.is_empty(), "{}: no source", experiment.name);
    }
}
