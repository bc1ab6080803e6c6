//! What a signal does to a recording: whatever asks the recorder to end, a whole trace is left.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::time::Duration;

use crate::recorder::{Recording, lives, tiers, wait_until};
use nix::sys::signal::Signal;

/// A second request counts only when it is not the first one's echo.
const LATER: Duration = Duration::from_millis(300);

/// C2: the forked child is the program, whatever ends it.
#[test]
fn every_ending_signal_leaves_a_whole_trace() {
    let signals = [
        Signal::SIGHUP,
        Signal::SIGINT,
        Signal::SIGQUIT,
        Signal::SIGTERM,
        Signal::SIGALRM,
        Signal::SIGVTALRM,
        Signal::SIGPROF,
        Signal::SIGXCPU,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
    ];
    for tier in tiers() {
        for signal in signals {
            let mut run =
                Recording::of_script(&["--quiet", "--tier", tier], "ulimit -c 0; echo ready; exec sleep 60");
            run.wait_for("ready");
            run.signal(signal);
            let status = run.end();
            assert_eq!(status.code(), Some(128 + signal as i32), "{signal} in tier {tier}: {}", run.stderr());
            assert!(run.trace().1.len() > 20, "{signal} in tier {tier}");
        }
    }
}

#[test]
fn a_hangup_that_nohup_ignores_is_ignored() {
    for tier in tiers() {
        let prepare = |quire: &mut std::process::Command| {
            // SAFETY: between fork and exec only a signal's disposition is set.
            unsafe {
                quire.pre_exec(|| {
                    let ignore = nix::sys::signal::SigHandler::SigIgn;
                    nix::sys::signal::signal(Signal::SIGHUP, ignore).map(drop).map_err(Into::into)
                })
            };
        };
        let script = "echo ready; while [ ! -e go ]; do sleep 0.01; done; exit 3";
        let command = ["sh", "-c", script];
        let mut run = Recording::start(&["--quiet", "--tier", tier], &command, None, prepare);
        run.wait_for("ready");
        run.signal(Signal::SIGHUP);
        std::fs::write(run.path("go"), "").expect("the directory is ours");
        assert_eq!(run.end().code(), Some(3));
    }
}

/// A request to end goes to every process of the recording: to one that has gone to a session of its own as well.
#[test]
fn every_recorded_process_gets_the_signal() {
    let script = "trap 'echo got-first; exit 5' TERM
        sh -c 'trap \"echo got-child; exit\" TERM; echo child; while :; do sleep 0.05; done' &
        setsid sh -c 'trap \"echo got-daemon; exit\" TERM; echo daemon; while :; do sleep 0.05; done' &
        echo first
        while :; do sleep 0.05; done";
    for tier in tiers() {
        let mut run = Recording::of_script(&["--quiet", "--tier", tier], script);
        ["first", "child", "daemon"].into_iter().for_each(|name| run.wait_for(name));
        run.signal(Signal::SIGTERM);
        assert_eq!(run.end().code(), Some(5), "{}", run.stderr());
        let said = run.text("stdout");
        for name in ["got-first", "got-child", "got-daemon"] {
            assert_eq!(said.matches(name).count(), 1, "{name} in tier {tier}: {said}");
        }
        run.trace();
    }
}

#[test]
fn a_second_signal_ends_the_recording_and_leaves_the_program() {
    for (tier, signal) in
        tiers().into_iter().flat_map(|tier| [(tier, Signal::SIGINT), (tier, Signal::SIGQUIT)])
    {
        // It goes on with its life, and asks for memory.
        let script = "trap 'echo heard' INT QUIT; echo ready $$
            while [ ! -e go ]; do sleep 0.01; done
            head -c 5000000 /dev/zero | tail -c 1 | wc -c > after; exit 4";
        let mut run = Recording::of_script(&["--tier", tier], script);
        run.wait_for("ready");
        run.signal(signal);
        // The recorder has taken the first one.
        run.wait_for("heard");
        std::thread::sleep(LATER);
        run.signal(signal);
        assert_eq!(run.end().code(), Some(128 + signal as i32), "tier {tier}: {}", run.stderr());
        run.trace();
        let said = run.text("stdout");
        let program = said.lines().next().and_then(|line| line.strip_prefix("ready ")).expect("it was ready");
        let program: i32 = program.parse().expect("a number");
        assert!(run.stderr().contains(&format!("{program}")), "{}", run.stderr());
        assert!(lives(program));
        std::fs::write(run.path("go"), "").expect("the directory is ours");
        wait_until(|| run.text("after").trim() == "1", || format!("tier {tier}: it does not go on"));
        wait_until(|| !lives(program), || "it does not end".into());
    }
}

/// A request that is made twice at once, as `timeout` does, is one request. The recorder is stopped meanwhile, so that
/// it finds both when it goes on, and the kernel merges none with the other: they are two signals.
#[test]
fn an_echo_of_a_request_is_no_second_one() {
    let script = "trap 'sleep 0.3; echo late; exit 6' HUP TERM; echo ready; while :; do sleep 0.05; done";
    for tier in tiers() {
        let mut run = Recording::of_script(&["--quiet", "--tier", tier], script);
        run.wait_for("ready");
        for signal in [Signal::SIGSTOP, Signal::SIGHUP, Signal::SIGTERM, Signal::SIGCONT] {
            run.signal(signal);
        }
        assert_eq!(run.end().code(), Some(6), "{}", run.stderr());
        assert!(run.text("stdout").contains("late"));
    }
}

/// At a terminal the whole process group gets an interrupt from the terminal: the recorder must not send it again.
#[test]
fn an_interrupt_of_the_terminal_is_delivered_once() {
    let script = "trap 'echo got >> got' INT; : > got; echo ready
        while [ ! -e go ]; do sleep 0.02; done; exit 7";
    for tier in tiers() {
        let terminal = nix::pty::openpty(None, None).expect("a terminal");
        let slave = terminal.slave.as_raw_fd();
        let prepare = |quire: &mut std::process::Command| {
            // SAFETY: between fork and exec only the session and its terminal are set.
            unsafe {
                quire.pre_exec(move || {
                    nix::unistd::setsid()?;
                    nix::errno::Errno::result(nix::libc::ioctl(slave, nix::libc::TIOCSCTTY, 0))?;
                    Ok(())
                })
            };
        };
        let mut run = Recording::start(&["--quiet", "--tier", tier], &["sh", "-c", script], None, prepare);
        run.wait_for("ready");
        let master: &OwnedFd = &terminal.master;
        nix::unistd::write(master, b"\x03").expect("the terminal takes it");
        wait_until(|| run.text("got").contains("got"), || "no interrupt".into());
        std::thread::sleep(LATER);
        assert_eq!(run.text("got").lines().count(), 1, "tier {tier}");
        std::fs::write(run.path("go"), "").expect("the directory is ours");
        assert_eq!(run.end().code(), Some(7), "{}", run.stderr());
        run.trace();
    }
}

/// Every signal has a number; a real-time signal has no more than that.
#[test]
fn a_real_time_signal_is_delivered_and_may_end_the_program() {
    let handled = "trap 'echo got; exit 7' 34; kill -34 $$; exit 1";
    for tier in tiers() {
        for (script, code) in [(handled, 7), ("kill -34 $$; exit 1", 128 + 34)] {
            let mut run = Recording::of_script(&["--quiet", "--tier", tier], script);
            assert_eq!(run.end().code(), Some(code), "{script} in tier {tier}: {}", run.stderr());
            assert!(run.trace().1.len() > 20, "{script} in tier {tier}");
        }
    }
}
