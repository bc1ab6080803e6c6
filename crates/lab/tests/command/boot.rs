//! `quire boot` with a stand-in for QEMU, which says what a kernel would.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::pty::openpty;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::Pid;
use tempfile::TempDir;

const QUIRE: &str = env!("CARGO_BIN_EXE_quire");
const QEMU: &str = "qemu-system-x86_64";

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// A folder with a script in QEMU's place; `$log` is the path of the log, `$archive` that of the archive.
struct StandIn(TempDir);

impl StandIn {
    fn new(body: &str) -> StandIn {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let text = format!(
            "#!/bin/sh\nfor word; do case $word in file,id=log,path=*) log=${{word#*path=}};; esac\n\
             if [ \"$last\" = -initrd ]; then archive=$word; fi; last=$word; done\n{body}\n"
        );
        fs::write(folder.path().join("kernel"), "\x7fELF").expect("a file");
        let stand_in = StandIn(folder);
        stand_in.tool(QEMU, &text);
        stand_in
    }

    /// One more program in the folder.
    fn tool(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, text).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
        path
    }

    /// The variable `PATH` with the folder in front.
    fn path(&self) -> OsString {
        let mut path = self.0.path().as_os_str().to_owned();
        path.push(":");
        path.push(std::env::var_os("PATH").expect("a path"));
        path
    }

    fn boot(&self, options: &[&str]) -> Command {
        let mut command = Command::new(QUIRE);
        command.arg("boot").arg("--kernel").arg(self.0.path().join("kernel")).args(options);
        command.args(["--", "sh", "-c", "a 'b'"]).env("PATH", self.path()).stdin(Stdio::null());
        command
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_exit_code_is_the_programs() {
    for (said, code) in [
        ("exited 0", 0),
        ("exited 7", 7),
        ("killed 9", 137),
        ("not started ENOENT", 127),
        ("not started EACCES", 126),
        ("failed", 123),
    ] {
        let stand_in = StandIn::new(&format!("echo out; echo '[quire] end: {said}' >$log; exit 3"));
        let output = stand_in.boot(&[]).output().expect("quire runs");
        assert_eq!(output.status.code(), Some(code), "{said}: {}", stderr(&output));
        assert_eq!(output.stdout, b"out\n");
        assert_eq!(stderr(&output).is_empty(), matches!(said, "exited 0" | "exited 7" | "killed 9"));
    }
    let output = StandIn::new("exit 1").boot(&[]).output().expect("quire runs");
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("QEMU ended before the program did"), "{}", stderr(&output));
}

#[test]
fn the_log_is_shown_when_the_kernel_failed_or_when_asked_for() {
    let lines = "printf '[quire] panicked\\nrip 0x1\\n[quire] #0 0x10\\n' >$log";
    let failed = StandIn::new(&format!("{lines}; echo '[quire] end: failed' >>$log"));
    let output = failed.boot(&[]).output().expect("quire runs");
    let expected =
        "[quire] panicked\nrip 0x1\n[quire] #0 0x10\n[quire] end: failed\nquire: the kernel failed\n";
    assert_eq!(stderr(&output), expected);
    let worked = StandIn::new(&format!("{lines}; echo '[quire] end: exited 0' >>$log"));
    assert_eq!(stderr(&worked.boot(&[]).output().expect("quire runs")), "");
    let output = worked.boot(&["--verbose"]).output().expect("quire runs");
    assert!(stderr(&output).starts_with("[quire] panicked\n"), "{}", stderr(&output));
}

#[test]
fn input_ends_as_a_user_ends_it() {
    let stand_in =
        StandIn::new("echo ready >$log; head -c 5 | od -An -c; echo '[quire] end: exited 0' >$log");
    for (typed, expected) in
        [("ab\n", "a   b  \\n 004"), ("abc", "a   b   c 004 004"), ("\n\u{3}\n", "\\n 003  \\n 004")]
    {
        let mut child =
            stand_in.boot(&[]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("quire runs");
        let mut input = child.stdin.take().expect("a pipe");
        input.write_all(typed.as_bytes()).expect("it reads");
        drop(input);
        let shown = String::from_utf8(child.wait_with_output().expect("it ends").stdout).expect("text");
        assert_eq!(shown.trim(), expected);
    }
}

#[test]
fn the_guest_gets_its_files_and_words() {
    let stand_in = StandIn::new("cp \"$archive\" archive; echo '[quire] end: exited 0' >$log");
    let folder = stand_in.0.path();
    fs::write(folder.join("given"), "given\n").expect("a file");
    let options = ["--file", "given:/etc/given", "--env", "X=y", "--keep", "kept", "--directory", "/etc"];
    let output = stand_in.boot(&options).current_dir(folder).output().expect("quire runs");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let archive = fs::read(folder.join("archive")).expect("it is there");
    assert_eq!(fs::read(folder.join("kept")).ok().as_ref(), Some(&archive));
    let has = |bytes: &[u8]| archive.windows(bytes.len()).any(|window| window == bytes);
    assert!(has(b"sh\0-c\0a 'b'\0") && has(b"X=y\0") && has(b"given\n"));
}

#[test]
fn a_directory_goes_to_the_root() {
    let stand_in = StandIn::new("echo '[quire] end: exited 0' >$log");
    let folder = stand_in.0.path();
    fs::create_dir_all(folder.join("dir/below")).expect("directories");
    fs::write(folder.join("dir/below/given"), "given\n").expect("a file");
    for (option, name) in
        [("dir:/", &b"dir/below/given\0"[..]), ("dir:/.", b"below/given\0"), ("dir/.:/.", b"below/given\0")]
    {
        let mut boot = stand_in.boot(&["--file", option, "--keep", "kept"]);
        let output = boot.current_dir(folder).output().expect("quire runs");
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let archive = fs::read(folder.join("kept")).expect("it is there");
        // The name follows a header of 110 digits.
        let at = archive.windows(name.len()).position(|window| window == name);
        let header = at.and_then(|at| at.checked_sub(110)).map(|start| &archive[start..start + 6]);
        assert_eq!(header, Some(&b"070701"[..]), "{option}");
    }
    for (option, message) in [
        ("dir:/proc/x", "cannot pack dir: the guest has files of its own in /proc"),
        ("dir/below/given:/.", "end the destination with /"),
        ("..:/x/", "the source has no name; name the destination"),
        ("dir:x", "give it as SRC, or as SRC:DEST with an absolute DEST"),
        ("none:/", "cannot pack none: No such file or directory (os error 2); check the path"),
    ] {
        let output = stand_in.boot(&["--file", option]).current_dir(folder).output().expect("quire runs");
        assert_ne!(output.status.code(), Some(0), "{option}");
        assert!(stderr(&output).contains(message), "{option}: {}", stderr(&output));
    }
}

/// Ends QEMU too, and says so by the status that `timeout` has.
#[test]
fn a_run_that_takes_too_long_is_ended() {
    let stand_in = StandIn::new("echo $$; exec sleep 600");
    let start = Instant::now();
    // On a busy machine it is ended before it has said its number.
    let mut runs = ["0.3", "3", "30"].into_iter().map(|seconds| {
        let output = stand_in.boot(&["--timeout", seconds]).output().expect("quire runs");
        assert_eq!(output.status.code(), Some(124), "{}", stderr(&output));
        output
    });
    let output = runs.find(|output| !output.stdout.is_empty()).expect("30 s are enough for a line");
    assert!(start.elapsed() < Duration::from_secs(500));
    assert_gone(&output.stdout);
}

fn assert_gone(pid: &[u8]) {
    let pid: u32 = String::from_utf8_lossy(pid).trim().parse().expect("the number of a process");
    let deadline = Instant::now() + PATIENCE;
    while Path::new("/proc").join(pid.to_string()).exists() {
        assert!(Instant::now() < deadline, "QEMU is left behind as {pid}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_signal_ends_qemu_too() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGKILL] {
        let stand_in = StandIn::new("echo $$ >pid.new; mv pid.new pid; exec sleep 600");
        let folder = stand_in.0.path();
        let temporary = folder.join("temporary");
        fs::create_dir(&temporary).expect("a directory");
        let mut command = stand_in.boot(&[]);
        let mut child = command.current_dir(folder).env("TMPDIR", &temporary).spawn().expect("quire runs");
        let pid = wait_for(&folder.join("pid"));
        kill(Pid::from_raw(child.id() as i32), signal).expect("it runs");
        let status = child.wait().expect("it ends");
        assert_eq!(status.signal(), Some(signal as i32), "{status}");
        let left = fs::read_dir(&temporary).expect("it is there").count();
        assert_eq!(left, 0, "{signal}");
        assert_gone(&pid);
    }
}

fn wait_for(path: &Path) -> Vec<u8> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match fs::read(path) {
            Ok(bytes) => return bytes,
            Err(error) => assert!(Instant::now() < deadline, "{}: {error}", path.display()),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_terminal_is_as_before() {
    let starts = "echo ready >$log; : >started; ";
    // It does not wait for ever where the test has failed.
    let goes = "turn=0; while [ ! -e go ] && [ $turn -lt 3000 ]; do sleep 0.02; turn=$((turn + 1)); done; \
                echo '[quire] end: exited 4' >$log";
    // On a busy machine a run may be over before QEMU has started: then the terminal has never changed.
    let limited = |seconds| {
        terminal_of_a_run(&format!("{starts}exec sleep 600"), &["--timeout", seconds], None, Some(124))
    };
    assert!(["0.4", "4", "40"].into_iter().any(limited), "40 s are enough for a start");
    for (body, signal, code) in [(goes, None, Some(4)), ("exec sleep 600", Some(Signal::SIGHUP), None)] {
        assert!(terminal_of_a_run(&format!("{starts}{body}"), &[], signal, code));
    }
}

/// Looks at the terminal during and after a run with this stand-in; whether QEMU has started.
fn terminal_of_a_run(body: &str, options: &[&str], signal: Option<Signal>, code: Option<i32>) -> bool {
    let stand_in = StandIn::new(body);
    let terminal = openpty(None, None).expect("a terminal");
    let before = tcgetattr(&terminal.slave).expect("a terminal");
    let line: File = terminal.slave.try_clone().expect("a descriptor").into();
    let mut child: Child = stand_in
        .boot(options)
        .current_dir(stand_in.0.path())
        .stdin(line)
        .stderr(Stdio::null())
        .spawn()
        .expect("quire runs");
    // A busy machine may need all of the time of a limit to start.
    if options.is_empty() {
        wait_for(&stand_in.0.path().join("started"));
        let cooked = LocalFlags::ECHO | LocalFlags::ICANON | LocalFlags::ISIG;
        let during = tcgetattr(&terminal.slave).expect("a terminal");
        assert!(!during.local_flags.intersects(cooked), "{during:?}");
        fs::write(stand_in.0.path().join("go"), "").expect("a file");
    }
    if let Some(signal) = signal {
        kill(Pid::from_raw(child.id() as i32), signal).expect("it runs");
    }
    assert_eq!(child.wait().expect("it ends").code(), code);
    assert_eq!(tcgetattr(&terminal.slave).expect("a terminal"), before);
    stand_in.0.path().join("started").exists()
}

/// A pager that waits for its user takes nothing.
#[test]
fn a_reader_that_takes_nothing_does_not_keep_the_run() {
    // The second one ends by itself, and its output is still to be shown.
    for body in ["while echo y; do :; done", "head -c 100000 /dev/zero; echo '[quire] end: exited 0' >$log"] {
        // The first limit behind which QEMU has started counts: a busy machine may need more.
        let limits = ["0.5", "5", "50"].map(|seconds| (vec!["--timeout", seconds], Some(124)));
        let mut started = false;
        for (options, ends) in limits.into_iter().chain([(Vec::new(), None)]) {
            if started && ends.is_some() {
                continue;
            }
            let stand_in = StandIn::new(&format!(": >started; {body}"));
            let mut command = stand_in.boot(&options);
            command.current_dir(stand_in.0.path()).stdout(Stdio::piped()).stderr(Stdio::null());
            let mut child = command.spawn().expect("quire runs");
            if ends.is_none() {
                wait_for(&stand_in.0.path().join("started"));
                std::thread::sleep(Duration::from_millis(200));
                kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).expect("it runs");
            }
            let deadline = Instant::now() + PATIENCE;
            while child.try_wait().expect("it is ours").is_none() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(10));
            }
            let in_time = child.try_wait().expect("it is ours");
            let _ = child.kill();
            child.wait().expect("it is ours");
            assert_eq!(in_time.map(|status| status.code()), Some(ends), "{body} {options:?}");
            started |= stand_in.0.path().join("started").exists();
            assert!(started || ends.is_some_and(|_| options[1] != "50"), "{body}: QEMU has never started");
        }
    }
}

/// A reader that has gone ends the command by SIGPIPE, and the guest with it.
#[test]
fn a_closed_pipe_ends_the_run() {
    let stand_in = StandIn::new("while echo y; do :; done; sleep 600");
    let mut child = stand_in.boot(&[]).stdout(Stdio::piped()).spawn().expect("quire runs");
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("it ends").signal(), Some(Signal::SIGPIPE as i32));
}

/// `nohup` has the hangup ignored: the run goes on, and so does QEMU, whatever it does at one.
#[test]
fn a_hangup_that_is_ignored_ends_nothing() {
    let stand_in = StandIn::new(
        "trap 'exit 9' HUP; : >started; while [ ! -e go ]; do sleep 0.05; done; echo '[quire] end: exited 3' >$log",
    );
    let folder = stand_in.0.path();
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$@\"", "sh", QUIRE, "boot", "--kernel", "kernel", "--", "sh"]);
    // A group of its own, which gets the signal as a whole.
    command.current_dir(folder).env("PATH", stand_in.path()).stdin(Stdio::null()).process_group(0);
    let mut child = command.spawn().expect("quire runs");
    wait_for(&folder.join("started"));
    killpg(Pid::from_raw(child.id() as i32), Signal::SIGHUP).expect("it runs");
    std::thread::sleep(Duration::from_millis(200));
    fs::write(folder.join("go"), "").expect("a file");
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(3), "{status}");
}

#[test]
fn a_full_disk_is_told() {
    let stand_in = StandIn::new("while echo y; do :; done; sleep 600");
    let full = || File::options().write(true).open("/dev/full").expect("a device");
    let output = stand_in.boot(&[]).stdout(full()).stderr(Stdio::piped()).output().expect("quire runs");
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("writing standard output failed: No space left on device"), "{said}");

    let output = stand_in.boot(&["--keep", "/dev/full"]).output().expect("quire runs");
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("cannot write the archive /dev/full: No space left on device"), "{said}");
}

#[test]
fn a_kernel_with_checks_is_never_another() {
    let stand_in = StandIn::new("echo '[quire] end: exited 0' >$log");
    let mut command = Command::new(QUIRE);
    command.args(["boot", "--checks", "--", "sh"]).env("PATH", stand_in.path()).stdin(Stdio::null());
    let output = command.env("QUIRE_KERNEL", stand_in.0.path().join("kernel")).output().expect("quire runs");
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("unset it"), "{}", stderr(&output));
}

#[test]
fn what_is_missing_is_told_in_one_line() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let boot = |options: &[&str], path: &Path| {
        let mut command = Command::new(QUIRE);
        command.arg("boot").args(options).args(["--", "/bin/sh"]).env("PATH", path);
        let output = command.output().expect("quire runs");
        let said = stderr(&output);
        assert_eq!(said.lines().count(), 1, "{said}");
        (output.status.code(), said)
    };
    let (code, said) = boot(&[], folder.path());
    assert_eq!(code, Some(125));
    assert!(said.contains("apt-get install --no-install-recommends qemu-system-x86"), "{said}");
    let stand_in = StandIn::new("exit 0");
    let (code, said) = boot(&["--kernel", "/no/such/kernel"], stand_in.0.path());
    assert!(code == Some(125) && said.contains("cannot read the kernel /no/such/kernel"), "{said}");
    let (code, said) = boot(&["--kernel", "/etc/passwd"], stand_in.0.path());
    assert!(code == Some(125) && said.contains("/etc/passwd: it is no ELF file; give `--kernel`"), "{said}");
    let (code, said) = boot(&["--icount", "--cpus", "2"], stand_in.0.path());
    assert!(code == Some(2) && said.contains("--icount"), "{said}");
}

#[test]
fn a_build_that_takes_long_is_announced_without_a_terminal_too() {
    let stand_in = StandIn::new("exit 1");
    // A compiler that has the target, and a build that takes a moment longer than one without work.
    let rustc = stand_in.tool("rustc", "#!/bin/sh\necho /\n");
    let cargo = stand_in.tool("cargo", "#!/bin/sh\nsleep 3; exit 1\n");
    let mut command = Command::new(QUIRE);
    command.args(["boot", "--", "sh"]).env("PATH", stand_in.path()).env("RUSTC", rustc).env("CARGO", cargo);
    let output = command.env_remove("QUIRE_KERNEL").stdin(Stdio::null()).output().expect("quire runs");
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(125), "{told}");
    let first = "quire: building the kernel, which takes a minute or two\n";
    assert!(told.starts_with(first) && told.contains("`cargo build` failed"), "{told}");
}
