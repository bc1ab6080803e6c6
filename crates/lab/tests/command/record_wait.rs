//! Which processes a recording waits for, and what becomes of those that it leaves.

use crate::recorder::{Recording, lives, tiers, wait_until};
use crate::rules;
use lab::trace::EventKind;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A script that leaves a daemon, which asks for memory once it is told to, and ends.
const LEAVES_A_DAEMON: &str = "setsid sh -c 'echo daemon $$; while [ ! -e go ]; do sleep 0.02; done
    head -c 5000000 /dev/zero | tail -c 1 | wc -c > after' </dev/null &
    while [ ! -s stdout ]; do sleep 0.02; done; exit 9";

fn daemon(run: &Recording) -> i32 {
    run.wait_for("daemon");
    run.text("stdout").trim_start_matches("daemon ").trim().parse().expect("a number")
}

/// Lets the daemon go on, which needs memory calls that work.
fn assert_works(run: &Recording, daemon: i32) {
    assert!(lives(daemon), "the daemon is gone");
    std::fs::write(run.path("go"), "").expect("the directory is ours");
    wait_until(|| run.text("after").trim() == "1", || "the daemon does not go on".into());
    wait_until(|| !lives(daemon), || "the daemon does not end".into());
}

#[test]
fn waiting_for_the_program_alone_leaves_its_daemon_running() {
    for tier in tiers() {
        let mut run = Recording::of_script(&["--tier", tier, "--wait", "main"], LEAVES_A_DAEMON);
        let daemon = daemon(&run);
        assert_eq!(run.end().code(), Some(9), "{}", run.stderr());
        assert!(run.stderr().contains(&daemon.to_string()), "{}", run.stderr());
        let (_, events) = run.trace();
        let first = events[0].pid;
        let ended = |pid| {
            events.iter().any(|event| event.pid == pid && matches!(event.kind, EventKind::ProcessExit { .. }))
        };
        assert!(ended(first) && !ended(daemon as u32), "tier {tier}");
        assert_works(&run, daemon);
    }
}

#[test]
fn waiting_for_all_goes_on_until_the_daemon_has_ended() {
    for tier in tiers() {
        let mut run = Recording::of_script(&["--quiet", "--tier", tier], LEAVES_A_DAEMON);
        let daemon = daemon(&run);
        assert_works(&run, daemon);
        assert_eq!(run.end().code(), Some(9), "{}", run.stderr());
        rules::check(&run.path("t.qtrace"));
    }
}

#[test]
fn nothing_is_left_to_say_when_nothing_is_left_running() {
    for tier in tiers() {
        let mut run = Recording::of_script(&["--quiet", "--tier", tier, "--wait", "main"], "exit 2");
        assert_eq!(run.end().code(), Some(2));
        assert_eq!(run.stderr().lines().filter(|line| line.contains("run on")).count(), 0);
        rules::check(&run.path("t.qtrace"));
    }
}

/// Threads and children of the script go on mapping while the recording ends: what is told up to the end is consistent.
#[test]
fn a_recording_that_is_cut_off_explains_all_its_faults() {
    let script = "(while :; do head -c 3000000 /dev/zero | tail -c 1 >/dev/null; done) &
        echo busy $!; sleep 0.4; exit 0";
    for tier in tiers() {
        let mut run = Recording::of_script(&["--quiet", "--tier", tier, "--wait", "main"], script);
        run.wait_for("busy");
        assert_eq!(run.end().code(), Some(0), "{}", run.stderr());
        let busy: i32 = run.text("stdout").trim_start_matches("busy ").trim().parse().expect("a number");
        kill(Pid::from_raw(busy), Signal::SIGKILL).expect("it lives");
        rules::check_living(&run.path("t.qtrace"));
    }
}

/// Nothing can save the trace then, but the program is not to suffer.
#[test]
fn a_recorder_that_is_killed_leaves_the_program_unharmed() {
    let script = "echo daemon $$; while [ ! -e go ]; do sleep 0.02; done
        head -c 5000000 /dev/zero | tail -c 1 | wc -c > after";
    for tier in tiers() {
        let mut run = Recording::of_script(&["--quiet", "--tier", tier], script);
        let program = daemon(&run);
        run.signal(Signal::SIGKILL);
        assert!(run.end().code().is_none());
        assert_works(&run, program);
        assert!(run.partial().is_some(), "what was written so far is there");
    }
}

/// The tracer that stays behind keeps nothing of the user's open: a pipe that the recording wrote to is closed.
#[test]
fn a_daemon_that_is_left_does_not_hold_the_recorders_output_open() {
    for tier in tiers() {
        let mut read = None;
        let mut run = Recording::start(
            &["--quiet", "--tier", tier, "--wait", "main"],
            &[
                "sh",
                "-c",
                "setsid sh -c 'exec sleep 60' >/dev/null 2>&1 </dev/null & echo $! > daemon; exit 0",
            ],
            None,
            |quire| {
                let (end, write) = std::io::pipe().expect("a pipe");
                read = Some(end);
                quire.stdout(write);
            },
        );
        assert_eq!(run.end().code(), Some(0), "{}", run.stderr());
        let mut all = String::new();
        let mut read = read.expect("it was made");
        std::io::Read::read_to_string(&mut read, &mut all).expect("a pipe that ends");
        for line in run.text("daemon").lines() {
            let _ = kill(Pid::from_raw(line.parse().expect("a number")), Signal::SIGKILL);
        }
    }
}
