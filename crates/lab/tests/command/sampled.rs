//! Runs that `quire verify` samples.

use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::verify::{ends, quire, samples, settled, until};

/// A sampled run ended with its first process, and the faults of those that this one had left running were not seen.
#[test]
fn a_sampled_run_lasts_as_long_as_all_that_the_program_started() {
    if !samples() {
        eprintln!("no settings that this user may change, or no perf: not tested");
        return;
    }
    let before = settled();
    let script = "(head -c 40000000 /dev/zero | tail -c 30000000 >/dev/null) & exit 0";
    let options = ["verify", "--sizes", "4K", "--runs", "1", "--sampled-runs", "2", "--run-off", "0"];
    let output =
        quire(&[&options[..], &["--rest", "200ms", "--format", "json", "--", "sh", "-c", script]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(settled(), before, "the settings are as before");
    let compared: Value = serde_json::from_slice(&output.stdout).expect("one line of JSON");
    let ns = |pointer: &str| compared.pointer(pointer).and_then(Value::as_f64).expect(pointer);
    let (measured, predicted) = (ns("/sizes/0/fault_ns/measured/median"), ns("/sizes/0/fault_ns/predicted"));
    assert!(measured > predicted / 2.0, "{compared}");
}

/// The program of a sampled run went on when `verify` was killed.
#[test]
fn the_program_that_is_sampled_ends_with_the_command() {
    if !samples() {
        eprintln!("no settings that this user may change, or no perf: not tested");
        return;
    }
    let before = settled();
    // Only sampled runs are in a group of their own, where one can be made.
    let script = "grep -q quire-verify /proc/self/cgroup || exit 0; echo $$ >number && mv number sampled && exec sleep 1000";
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let directory = tempfile::tempdir().expect("a directory");
        let mut verify = Command::new(env!("CARGO_BIN_EXE_quire"))
            .args(["verify", "--sizes", "4K", "--runs", "1", "--sampled-runs", "1", "--run-off", "0"])
            .args(["--", "sh", "-c", script])
            .current_dir(&directory)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("quire runs");
        let sampled = until("the program was not sampled", || {
            let ended = verify.try_wait().expect("it is ours").is_some();
            let number = std::fs::read_to_string(directory.path().join("sampled")).ok();
            (ended || number.is_some()).then_some(number)
        });
        let Some(sampled) = sampled else {
            let output = verify.wait_with_output().expect("it is ours");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains("no control group can be made"), "{said}");
            return;
        };
        kill(Pid::from_raw(verify.id() as i32), signal).expect("it is ours");
        assert!(!verify.wait().expect("it is ours").success(), "{signal}");
        ends(&sampled);
        assert!(quire(&["restore"]).status.success());
        assert_eq!(settled(), before, "{signal}: the settings are as before");
    }
}
