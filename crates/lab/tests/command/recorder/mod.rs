//! Runs `quire record` as a user does, in a directory of its own, and reads what comes of it.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

use lab::trace::{Event, Header, TraceReader};
use nix::sys::signal::{SigHandler, Signal, kill, signal};
use nix::unistd::Pid;
use tempfile::TempDir;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// Any user without rights.
pub(crate) const ORDINARY_USER: u32 = 65534;

/// Lets a command run in a process group of its own. When a process group has a stopped process and no member
/// is left that a shell outside could continue, the kernel sends SIGHUP to all of it: this test must not be one.
pub(crate) fn in_own_group(command: &mut Command) {
    command.process_group(0);
}

/// A recording that runs, or has ended.
pub(crate) struct Recording {
    pub(crate) directory: TempDir,
    child: Child,
}

/// Copies a program. Another process writes the copy: if this one did, a test beside it could fork while the copy is open, and
/// it could not be executed until that child has become its own program.
pub(crate) fn copy_program(program: &str, copy: &Path) {
    let copied = Command::new("cp").arg(program).arg(copy).status().expect("cp runs");
    assert!(copied.success(), "{program} cannot be copied");
}

impl Recording {
    /// Starts one of a shell script. Its standard output and standard error are files.
    pub(crate) fn of_script(options: &[&str], script: &str) -> Recording {
        Recording::start(options, &["sh", "-c", script], None, in_own_group)
    }

    /// Starts one of what already runs, and waits until it is attached.
    pub(crate) fn attached(options: &[&str]) -> Recording {
        let run = Recording::start(options, &[], None, in_own_group);
        wait_until(|| run.stderr().contains("attached to"), || format!("not attached: {}", run.stderr()));
        run
    }

    pub(crate) fn start(
        options: &[&str],
        command: &[&str],
        uid: Option<u32>,
        prepare: impl FnOnce(&mut Command),
    ) -> Recording {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let open = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(directory.path(), open).expect("the directory is ours");
        let mut quire = Command::new(env!("CARGO_BIN_EXE_quire"));
        if let Some(uid) = uid {
            // Others may not reach the build directory.
            let copy = directory.path().join("quire");
            copy_program(env!("CARGO_BIN_EXE_quire"), &copy);
            quire = Command::new(copy);
            quire.uid(uid).gid(uid);
        }
        let file = |name| std::fs::File::create(directory.path().join(name)).expect("a file");
        quire.current_dir(directory.path()).args(["record", "-o", "t.qtrace"]).args(options);
        if !command.is_empty() {
            quire.arg("--").args(command);
        }
        quire.stdin(Stdio::null()).stdout(file("stdout")).stderr(file("stderr"));
        // SAFETY: between fork and exec only the actions of two signals are set, which may be ignored where tests run.
        unsafe {
            quire.pre_exec(|| {
                for interrupt in [Signal::SIGINT, Signal::SIGQUIT] {
                    signal(interrupt, SigHandler::SigDfl)?;
                }
                Ok(())
            })
        };
        prepare(&mut quire);
        let child = quire.spawn().expect("quire runs");
        Recording { directory, child }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("the recorder lives");
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(&std::fs::read(self.path(name)).unwrap_or_default()).into_owned()
    }

    pub(crate) fn stderr(&self) -> String {
        self.text("stderr")
    }

    /// Waits until the program has written this to its standard output.
    pub(crate) fn wait_for(&self, text: &str) {
        wait_until(|| self.text("stdout").contains(text), || format!("no {text:?}: {}", self.stderr()));
    }

    /// Waits for the recorder's end.
    pub(crate) fn end(&mut self) -> ExitStatus {
        let mut status = None;
        let has_ended = || {
            status = self.child.try_wait().expect("it is ours");
            status.is_some()
        };
        wait_until(has_ended, || "the recorder does not end".into());
        status.expect("it has ended")
    }

    /// The trace, whole.
    pub(crate) fn trace(&self) -> (Header, Vec<Event>) {
        let mut reader = TraceReader::open(self.path("t.qtrace"))
            .unwrap_or_else(|error| panic!("{error}: {}", self.stderr()));
        let events = reader.by_ref().collect::<Result<Vec<_>, _>>().expect("the trace is whole");
        assert!(self.partial().is_none(), "a partial file is left");
        (reader.header().clone(), events)
    }

    /// The file that the recorder writes into before the trace is whole.
    pub(crate) fn partial(&self) -> Option<PathBuf> {
        let entries = std::fs::read_dir(self.directory.path()).expect("the directory is readable");
        let mut paths = entries.map(|entry| entry.expect("an entry").path());
        paths.find(|path| path.extension().is_some_and(|extension| extension == "partial"))
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // Only a test that failed leaves it running.
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

pub(crate) fn wait_until(mut holds: impl FnMut() -> bool, otherwise: impl FnOnce() -> String) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "{}", otherwise());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process lives; one that has ended and was not waited for does not.
pub(crate) fn lives(pid: i32) -> bool {
    let mut stat = String::new();
    let opened = std::fs::File::open(format!("/proc/{pid}/stat"));
    opened.and_then(|mut file| file.read_to_string(&mut stat)).is_ok()
        && stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

/// The tiers that this machine permits to this user.
pub(crate) fn tiers() -> Vec<&'static str> {
    static TIERS: LazyLock<Vec<&str>> = LazyLock::new(|| {
        let permitted = |tier: &&str| {
            let mut run = Recording::of_script(&["--quiet", "--tier", *tier], "true");
            let permitted = run.end().success();
            assert!(permitted || run.stderr().contains("run as root"), "{}", run.stderr());
            permitted
        };
        let tiers: Vec<&str> = ["privileged", "user"].into_iter().filter(permitted).collect();
        if tiers.contains(&"privileged") {
            keep_tracepoints();
        }
        tiers
    });
    TIERS.clone()
}

/// Keeps the tracepoints of the privileged tier in use until these tests end.
///
/// When the last user of a tracepoint goes, the kernel waits until no processor can be inside of it. Meanwhile no
/// other recording starts, forks or ends. Without this, each recording by perf ends with ten such waits, 0.3 s in all,
/// and the tests beside it wait too.
fn keep_tracepoints() {
    // It ends when its standard input does, however this process ends.
    static KEEPER: Mutex<Option<Child>> = Mutex::new(None);
    let mut quire = Command::new(env!("CARGO_BIN_EXE_quire"));
    quire.args([
        "record",
        "--quiet",
        "--tier",
        "privileged",
        "--source",
        "perf",
        "--ring",
        "64K",
        "-o",
        "/dev/null",
        "--",
        "cat",
    ]);
    in_own_group(&mut quire);
    let keeper = quire.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    *KEEPER.lock().expect("no test panics here") = Some(keeper.expect("quire runs"));
}

pub(crate) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Whether this machine lets a recorder attach; says why not.
pub(crate) fn can_attach() -> bool {
    let can = is_root() && tiers().contains(&"privileged");
    if !can {
        println!("skipped: attaching needs root and the kernel's tracepoints");
    }
    can
}

/// A process that ends with the test.
pub(crate) struct Killed(pub(crate) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
