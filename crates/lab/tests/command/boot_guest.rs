//! `quire boot` with QEMU itself and the kernel of the source tree, where both are there.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;

use nix::pty::{Winsize, openpty};

const QUIRE: &str = env!("CARGO_BIN_EXE_quire");
const QEMU: &str = "qemu-system-x86_64";

/// Whether this machine can run the kernel of the source tree, and has built it with its debug checks before.
/// The first build takes as long as a fifth of the workspace; `.ci/run` does it before these tests. A build that
/// is out of date is brought up to date.
fn has_machine() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let programs: Vec<PathBuf> = std::env::split_paths(&path).collect();
    for program in [QEMU, "busybox"] {
        if !programs.iter().any(|folder| folder.join(program).is_file()) {
            eprintln!("skipped: this machine has no {program}");
            return false;
        }
    }
    let rustc =
        Command::new("rustc").args(["--print", "target-libdir", "--target", "x86_64-unknown-none"]).output();
    let libraries = rustc.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let has_target = libraries.is_ok_and(|path| Path::new(&path).exists());
    if !has_target {
        eprintln!("skipped: this machine's compiler has no target x86_64-unknown-none");
    }
    const BUILT: &str =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernel/target/x86_64-unknown-none/debug/quire-kernel");
    let is_built = Path::new(BUILT).exists();
    if !is_built {
        eprintln!("skipped: the kernel is not built, `cargo build` in the folder `kernel` does it");
    }
    has_target && is_built
}

/// `quire boot` with the debug checks, until the words of the program.
fn boot(options: &[&str]) -> Command {
    let mut command = Command::new(QUIRE);
    command.args(["boot", "--checks", "--timeout", "100"]).args(options).args(["--", "busybox"]);
    command.env_remove("QUIRE_KERNEL").stdin(Stdio::null());
    command
}

/// What the program wrote. The exit code must be this one.
fn shown(output: &Output, code: i32) -> String {
    let shown = String::from_utf8_lossy(&output.stdout).replace('\r', "");
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{shown}{told}");
    shown
}

#[test]
fn programs_run_in_the_kernel() {
    if !has_machine() {
        return;
    }
    for (options, words, code, expected) in [
        (&[][..], &["echo", "hello", "world"][..], 0, "hello world\n"),
        (&["--icount", "--memory", "64M"], &["false"], 1, ""),
        (&["--machine", "microvm"], &["cat", "/no/such/file"], 1, ""),
        (&["--directory", "/tmp"], &["pwd"], 0, "/tmp\n"),
        // Words of the program are no options, behind an option and without any.
        (&["--cpus", "2"], &["sh", "-c", "grep -c ^processor /proc/cpuinfo", "cpus=1"], 0, "2\n"),
        (&["--cpus", "2", "--kernel-option", "a=b"], &["sh", "-c", "nproc", "cpus=1", "--"], 0, "2\n"),
        (&["--cpus", "2"], &["sh", "-c", "nproc", "cpus=1", "--", "x"], 0, "2\n"),
    ] {
        let output = boot(options).args(words).output().expect("quire runs");
        let shown = shown(&output, code);
        assert!(expected.is_empty() || shown == expected, "{words:?}: {shown}");
    }
}

/// Options hold, whatever bytes the program gets.
#[test]
fn words_need_not_be_text() {
    if !has_machine() {
        return;
    }
    let mut command = boot(&["--kernel-option", "hugepages=4"]);
    command.args(["sh", "-c", "grep HugePages_Total /proc/meminfo; echo \"$0\""]);
    let output = command.arg(OsStr::from_bytes(b"caf\xe9")).output().expect("quire runs");
    let (lines, bytes) = (shown(&output, 0), &output.stdout);
    assert!(lines.starts_with("HugePages_Total:") && lines.contains(" 4\n"), "{lines}");
    assert!(bytes.windows(4).any(|window| window == b"caf\xe9"), "{lines}");
}

/// A failure has a status of its own, and shows registers, the functions that ran, and what memory is used for. Among the
/// registers is CR4, which tells of page tables of five levels: the processor has them.
#[test]
fn a_failure_of_the_kernel_says_where_and_why() {
    if !has_machine() {
        return;
    }
    for (kind, why) in [
        ("panic", &["panic on CPU 0", "a panic on purpose", "rip 0x", "fail_if_wanted at "][..]),
        (
            "trap",
            &[
                "trap in the kernel, cr2 0x10",
                "error 0x2 ",
                "r15 0x5175697265000000",
                "quire_kernel::selftest::trap",
            ],
        ),
    ] {
        let levels = if kind == "trap" { "la57=off" } else { "x=y" };
        let selftest = format!("selftest={kind}");
        let options = ["--kernel-option", &selftest, "--kernel-option", levels];
        let output = boot(&options).arg("true").output().expect("quire runs");
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(123), "{told}");
        let both = ["cr3 0x", "run_command at ", "MemTotal: ", "ZoneInfo {", "the kernel failed"];
        for expected in why.iter().chain(&both) {
            assert!(told.contains(expected), "no {expected:?} in {told}");
        }
        assert_eq!(told.contains("L5_PAGING"), levels != "la57=off", "{told}");
    }
}

#[test]
fn files_keep_the_dots_of_their_names() {
    if !has_machine() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary directory");
    let given = folder.path().join("given");
    fs::write(&given, "given\n").expect("a file");
    let option = format!("{}:/.given", given.display());
    let output = boot(&["--file", &option]).args(["cat", "/.given"]).output().expect("quire runs");
    assert_eq!(shown(&output, 0), "given\n");
}

/// A program that reads late gets all lines, also those that its terminal has no room for.
#[test]
fn input_waits_for_its_reader() {
    if !has_machine() {
        return;
    }
    let mut command = boot(&[]);
    command.args(["sh", "-c", "stty -echo; sleep 1; echo lines $(wc -l)"]).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("quire runs");
    let mut input = child.stdin.take().expect("a pipe");
    let lines: String = (0..5000).map(|number| format!("{number}\n")).collect();
    let writes = thread::spawn(move || input.write_all(lines.as_bytes()).expect("it reads"));
    let output = child.wait_with_output().expect("it ends");
    writes.join().expect("it writes all");
    let shown = shown(&output, 0);
    // Behind what was echoed before.
    assert!(shown.ends_with("lines 5000\n"), "{shown}");
}

#[test]
fn the_guest_has_the_terminals_size() {
    if !has_machine() {
        return;
    }
    let size = Winsize { ws_row: 50, ws_col: 160, ws_xpixel: 0, ws_ypixel: 0 };
    let terminal = openpty(Some(&size), None).expect("a terminal");
    let mut master: File = terminal.master.into();
    let slave: File = terminal.slave.into();
    let mut command = boot(&[]);
    command.args(["stty", "size"]).stdin(slave.try_clone().expect("a descriptor")).stdout(slave);
    let mut child = command.spawn().expect("quire runs");
    // Its copies of the terminal.
    drop(command);
    let mut text = Vec::new();
    // Ends with an error, when no process has the terminal.
    let _ = master.read_to_end(&mut text);
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&text).trim(), "50 160");
}
