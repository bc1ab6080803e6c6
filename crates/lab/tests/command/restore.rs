//! Settings that a killed or interrupted run has changed come back. The settings are a copy (`QUIRE_SETTINGS`).

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use lab::host::thp::selected;
use lab::settings::Places;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tempfile::{TempDir, TempPath};

use crate::small_trace::program;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs that are killed.
const KILLS: usize = 20;

const SETTINGS: [(&str, &str); 7] = [
    ("thp/hugepages-16kB/enabled", "never"),
    ("thp/hugepages-64kB/enabled", "always"),
    ("thp/hugepages-2048kB/enabled", "inherit"),
    ("thp/khugepaged/pages_to_scan", "4096"),
    ("thp/khugepaged/scan_sleep_millisecs", "10000"),
    ("min_free", "67584"),
    ("thp/enabled", "madvise"),
];

/// A user who may not change settings learns it before the program runs.
#[test]
fn verify_runs_nothing_where_settings_may_not_be_changed() {
    let copy = Copy::new();
    // Root may write every file, and no user a directory.
    let first = copy.path("thp/hugepages-16kB/enabled");
    fs::remove_file(&first).expect("it was there");
    fs::create_dir(&first).expect("a directory");
    let marker = copy.directory.path().join("it-ran");
    let output = copy.output(&["verify", "--", "/bin/touch", marker.to_str().expect("a name that is text")]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("cannot change settings of the kernel") && said.contains("run as root"), "{said}");
    assert!(output.status.code() == Some(1) && !marker.exists(), "the program ran");
}

/// A copy of the settings, and a trace whose program does nothing.
pub(crate) struct Copy {
    directory: TempDir,
    places: Places,
    pub(crate) trace: TempPath,
}

type Values = BTreeMap<&'static str, Option<String>>;

impl Copy {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let places = Places::under(directory.path().to_owned());
        let copy = Self { directory, places, trace: program().write() };
        fs::create_dir(&copy.places.state).expect("a directory");
        for (name, value) in SETTINGS {
            let path = copy.path(name);
            fs::create_dir_all(path.parent().expect("it has one")).expect("a directory");
            fs::write(path, format!("{value}\n")).expect("a file");
        }
        symlink("/bin/true", copy.directory.path().join("small")).expect("a link");
        copy
    }

    fn path(&self, name: &str) -> PathBuf {
        match name.strip_prefix("thp/") {
            Some(name) => self.places.settings.join(name),
            None => self.places.min_free.clone(),
        }
    }

    fn values(&self) -> Values {
        SETTINGS.iter().map(|(name, _)| (*name, selected(&self.path(name)))).collect()
    }

    pub(crate) fn quire(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
        command
            .args(arguments)
            .env("QUIRE_SETTINGS", self.directory.path())
            .env("PATH", self.directory.path());
        command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
        command
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.quire(arguments).output().expect("quire runs")
    }

    /// A run that has begun to change settings, and may be started as `nohup` does it.
    fn run_that_changes(&self, nohup: bool) -> Child {
        let original = original();
        let mut command = self.quire(&["verify", "--sizes", "16K,64K,2M", "--runs", "1000"]);
        if nohup {
            let quire = std::mem::replace(&mut command, Command::new("/bin/sh"));
            command
                .args(["-c", "trap '' HUP; exec \"$@\"", "sh"])
                .arg(quire.get_program())
                .args(quire.get_args());
            command.envs(quire.get_envs().filter_map(|(name, value)| Some((name, value?))));
        }
        command.arg(&self.trace as &Path).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let mut child = command.spawn().expect("quire runs");
        let since = Instant::now();
        while self.values() == original {
            std::thread::sleep(Duration::from_micros(200));
            assert!(child.try_wait().expect("it is ours").is_none(), "the run ended and changed nothing");
            assert!(since.elapsed() < PATIENCE, "the run changes nothing");
        }
        child
    }

    fn has_journal(&self) -> bool {
        self.places.journal().exists()
    }
}

fn original() -> Values {
    SETTINGS.iter().map(|(name, value)| (*name, Some((*value).to_owned()))).collect()
}

/// Half of the runs are killed as soon as a change shows, the others at a random moment after it.
#[test]
fn the_next_start_of_any_command_restores_what_a_killed_run_changed() {
    let mut random = fastrand::Rng::with_seed(20);
    let (copy, original) = (Copy::new(), original());
    let mut changed = 0;
    for round in 0..KILLS {
        let mut run = copy.run_that_changes(false);
        if round % 2 == 1 {
            std::thread::sleep(Duration::from_micros(random.u64(0..30_000)));
        }
        run.kill().expect("it is ours");
        run.wait().expect("it is ours");
        changed += usize::from(copy.values() != original);
        let next: &[&str] = match round % 3 {
            0 => &["restore"],
            1 => &["completions", "bash"],
            _ => &["man", copy.directory.path().to_str().expect("a name that is text")],
        };
        let output = copy.output(next);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{next:?}: {told}");
        assert_eq!(copy.values(), original, "round {round}, {next:?}: {told}");
        assert!(!copy.has_journal());
    }
    assert!(changed > KILLS / 2, "only {changed} of {KILLS} kills came while settings were changed");
}

/// The one that puts back is killed as well, at a random moment: before it has begun, meanwhile, or when it has ended. What it
/// has not put back, the next one does.
#[test]
fn a_restore_that_is_killed_too_is_finished_by_the_next_one() {
    let mut random = fastrand::Rng::with_seed(21);
    let (copy, original) = (Copy::new(), original());
    let mut unfinished = 0;
    for round in 0..KILLS {
        let mut run = copy.run_that_changes(false);
        std::thread::sleep(Duration::from_micros(random.u64(0..30_000)));
        run.kill().expect("it is ours");
        run.wait().expect("it is ours");
        let mut first = copy.quire(&["restore"]).stdout(Stdio::null()).spawn().expect("quire runs");
        std::thread::sleep(Duration::from_micros(random.u64(0..8_000)));
        first.kill().expect("it is ours");
        first.wait().expect("it is ours");
        unfinished += usize::from(copy.has_journal());
        let output = copy.output(&["restore"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(copy.values(), original, "round {round}");
        assert!(!copy.has_journal());
    }
    assert!(unfinished > 0, "each of the {KILLS} killed restores had already finished");
}

#[test]
fn an_interrupted_run_restores_what_it_changed() {
    let copy = Copy::new();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let mut run = copy.run_that_changes(false);
        kill(Pid::from_raw(run.id() as i32), signal).expect("it is ours");
        assert!(!run.wait().expect("it is ours").success());
        assert_eq!(copy.values(), original(), "{signal}");
        assert!(!copy.has_journal());
    }
}

/// `nohup` has its program ignore this signal, so that the program goes on when its terminal is gone.
#[test]
fn a_run_goes_on_after_a_hangup_that_it_was_to_ignore() {
    let copy = Copy::new();
    let mut run = copy.run_that_changes(true);
    kill(Pid::from_raw(run.id() as i32), Signal::SIGHUP).expect("it is ours");
    std::thread::sleep(Duration::from_secs(1));
    assert!(run.try_wait().expect("it is ours").is_none(), "the hangup has ended it");
    kill(Pid::from_raw(run.id() as i32), Signal::SIGTERM).expect("it is ours");
    assert!(!run.wait().expect("it is ours").success());
    assert_eq!(copy.values(), original());
    assert!(!copy.has_journal());
}

#[test]
fn restore_tells_what_it_did() {
    let copy = Copy::new();
    let told = |output: Output| String::from_utf8(output.stdout).expect("text");
    assert_eq!(told(copy.output(&["restore"])), "nothing to put back\n");
    let as_json =
        || serde_json::from_slice(&copy.output(&["restore", "--format", "json"]).stdout).expect("an object");
    let object: serde_json::Value = as_json();
    assert_eq!(object["outcome"], "nothing", "{object}");
    let mut run = copy.run_that_changes(false);
    assert_eq!(told(copy.output(&["restore"])), "another run has changed settings and will put them back\n");
    assert_eq!(as_json()["outcome"], "in-use");
    let own = copy.path("thp/khugepaged/pages_to_scan");
    let since = Instant::now();
    while selected(&own).as_deref() == Some("4096") {
        assert!(since.elapsed() < PATIENCE, "the run changes nothing");
    }
    // With the run that it has started: at its start that one would put back what its parent has left.
    killpg(Pid::from_raw(run.id() as i32), Signal::SIGKILL).expect("it is ours");
    run.wait().expect("it is ours");
    // The user has set this one since.
    fs::write(&own, "77").expect("a file");
    let object = as_json();
    assert_eq!(object["outcome"], "put-back", "{object}");
    let told = object["told"].to_string();
    assert!(told.contains("left alone: ") && told.contains("pages_to_scan is 77"), "{told}");
    assert_eq!(selected(&own).as_deref(), Some("77"));
    assert!(!copy.has_journal());
}
