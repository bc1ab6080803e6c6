//! Threads that change the same addresses at once: the order in a recording is one in which it may have happened.

mod remap_script;

use std::path::Path;
use std::process::{Command, Output};

use lab::trace::{Tier, TraceReader};

const QUIRE: &str = env!("CARGO_BIN_EXE_quire");

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The tiers that this machine permits to this user.
fn tiers() -> Vec<&'static str> {
    let permitted = |tier: &&str| {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut quire = Command::new(QUIRE);
        quire.args(["record", "--quiet", "--tier", tier, "-o"]).arg(directory.path().join("t.qtrace"));
        quire.args(["--", "true"]).output().expect("quire runs").status.success()
    };
    ["privileged", "user"].into_iter().filter(permitted).collect()
}

/// Records this many threads, each with so many changes.
fn record(tier: &str, threads: usize, rounds: usize, trace: &Path) {
    let me = std::env::current_exe().expect("this test has a path");
    let mut quire = Command::new(QUIRE);
    quire.args(["record", "--quiet", "--tier", tier, "-o"]).arg(trace).arg("--");
    quire.arg("env").arg(format!("{}={threads} {rounds}", remap_script::VARIABLE)).arg(me);
    let recorded = quire.args(["--exact", remap_script::TEST]).output().expect("quire runs");
    assert!(recorded.status.success(), "{}{}", text(&recorded.stdout), text(&recorded.stderr));
}

fn check(trace: &Path) -> Output {
    Command::new(QUIRE).args(["replay", "--check"]).arg(trace).output().expect("quire runs")
}

/// Twice as many threads as most machines here have processors, so that they are held up anywhere.
#[test]
fn threads_that_remap_overlapping_ranges_replay_as_they_ran() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for tier in tiers() {
        for threads in [2, 4, 8] {
            let trace = directory.path().join(format!("{tier}-{threads}.qtrace"));
            record(tier, threads, 2000, &trace);
            let header = TraceReader::open(&trace).expect("the trace opens").header().clone();
            assert_eq!(header.totals.lost, 0);
            assert_eq!(header.tier == Tier::User, tier == "user");
            let checked = check(&trace);
            let said = text(&checked.stdout) + &text(&checked.stderr);
            assert!(checked.status.success(), "{threads} threads, tier {tier}: {said}");
            assert!(said.contains("no divergence"), "{said}");
        }
    }
}
