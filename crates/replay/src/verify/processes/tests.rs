use super::super::compare::Verdict;
use super::super::priced;
use super::*;
use crate::replay::{FolioSet, Trial};
use crate::trace::{EventKind, TraceReader};

const MIB: u64 = 1 << 20;

fn replayed(processes: &[(u32, u64)]) -> Vec<ProcessMemory> {
    let names = ["/usr/bin/sh", "/usr/lib/gcc/a-name-that-is-long"].map(str::to_owned);
    let of = |&(program, mib): &(u32, u64)| Process {
        program: Some(PathId(program)),
        last_peak: mib * MIB,
        ..Process::default()
    };
    predicted(&names, &processes.iter().map(of).collect::<Vec<_>>())
}

fn run(processes: &[(&str, u64)]) -> Vec<ProcessPeak> {
    let of = |&(program, mib): &(&str, u64)| ProcessPeak {
        huge_bytes: None,
        program: program.to_owned(),
        peak_rss_bytes: mib * MIB,
    };
    processes.iter().map(of).collect()
}

#[test]
fn processes_are_matched_by_name_and_order_of_start() {
    let long = "a-name-that-is-";
    let predicted = replayed(&[(0, 100), (1, 200), (0, 300), (0, 400)]);
    // The second run lacks a process, and has one that was never recorded.
    let runs =
        [run(&[("sh", 101), (long, 210), ("sh", 300)]), run(&[("sh", 101), ("other", 7), (long, 230)])];
    let processes = Processes::of(&predicted, &runs);
    let found: Vec<_> = processes
        .matched
        .iter()
        .map(|one| {
            let figure = one.peak_rss_bytes;
            (one.program.as_str(), one.number, one.runs, figure.measured.median / MIB, figure.verdict)
        })
        .collect();
    let expected = [
        ("sh", 1, 2, 101, Verdict::Within),
        (long, 1, 2, 220, Verdict::WithinSpread),
        ("sh", 2, 1, 300, Verdict::Within),
    ];
    assert_eq!(found, expected);
    assert_eq!((processes.only_predicted, processes.only_measured), (1, 1));
    // A small process may be far off, and the largest right.
    let runs = [run(&[("sh", 50), (long, 200), ("sh", 300), ("sh", 400)])];
    let verdicts = |one: &ProcessFigure| one.peak_rss_bytes.verdict;
    let missed = Processes::of(&predicted, &runs);
    assert_eq!(missed.matched.iter().map(verdicts).filter(|it| *it == Verdict::Missed).count(), 1);
}

#[test]
fn a_prediction_of_several_recordings_is_the_median_of_each_process() {
    let recordings = [replayed(&[(0, 100), (1, 10)]), replayed(&[(0, 300)]), replayed(&[(1, 20), (0, 200)])];
    let usual = usual(recordings.iter().map(Vec::as_slice));
    assert_eq!(usual, replayed(&[(0, 200), (1, 15)]));
}

#[test]
fn what_was_not_seen_is_not_compared() {
    assert_eq!(Processes::of(&replayed(&[(0, 100)]), &[]), Processes::default());
    assert_eq!(Processes::of(&[], &[run(&[("sh", 101)])]), Processes::default(), "nor what is not predicted");
}

/// Most processes of this script are shorter than a step of the timeline, and the script ends after all of them.
#[test]
fn a_replay_has_processes_in_the_order_of_their_starts() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/forks.qtrace");
    let mut started: Vec<u32> = Vec::new();
    for event in TraceReader::open(&path).unwrap() {
        let event = event.unwrap();
        let pid = match event.kind {
            EventKind::Fork { child_pid, .. } => child_pid,
            EventKind::Exec { .. } => event.pid,
            _ => continue,
        };
        if !started.contains(&pid) {
            started.push(pid);
        }
    }
    let trial = Trial::open(&path, None).unwrap();
    let replayed = priced::replay(&trial, &[FolioSet::FRAMES]).unwrap();
    let found: Vec<u32> = replayed[0].processes.iter().map(|process| process.pid).collect();
    assert!(found.len() > 10, "{found:?}");
    assert_eq!(found, started);
}
