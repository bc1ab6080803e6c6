//! A recording between the runs of `quire verify`, and a signal.

use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::verify::{ends, quire, samples, settled, until};

/// A program that was recorded between the sampled runs went on after an interrupt, or `verify` did: the recorder and the thread
/// that puts settings back both wait for the signal, and one of them gets it. Neither sees SIGKILL.
#[test]
fn the_program_that_is_recorded_again_ends_with_the_command() {
    if !samples() {
        eprintln!("no settings that this user may change, or no perf: not tested");
        return;
    }
    let before = settled();
    // Recorded programs are kept from large folios: the second one of these says its number, and sleeps.
    let script = "grep -q 'THP_enabled:.*0' /proc/self/status || exit 0; \
                  test -e first && echo $$ >number && mv number second && exec sleep 1000; echo >first";
    for signal in [Signal::SIGINT, Signal::SIGKILL] {
        let directory = tempfile::tempdir().expect("a directory");
        let mut verify = Command::new(env!("CARGO_BIN_EXE_quire"))
            .args(["verify", "--sizes", "4K", "--runs", "1", "--sampled-runs", "1", "--", "sh", "-c", script])
            .current_dir(&directory)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("quire runs");
        let recorded = until("the program was not recorded again", || {
            std::fs::read_to_string(directory.path().join("second")).ok()
        });
        kill(Pid::from_raw(verify.id() as i32), signal).expect("it is ours");
        assert!(!verify.wait().expect("it is ours").success(), "{signal}");
        ends(&recorded);
        assert!(quire(&["restore"]).status.success());
        assert_eq!(settled(), before, "{signal}: the settings are as before");
    }
}
