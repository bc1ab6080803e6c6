//! What the command shows: at any width, with any names, to any reader; and what it ends with.

use crate::bundled;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

use crate::pty::Pty;
use crate::restore::Copy;
use lab::trace::{
    Clock, Event, EventKind, FaultKinds, Header, Program, Tier, Totals, TraceReader, TraceWriter, VERSION,
};

const QUIRE: &str = env!("CARGO_BIN_EXE_quire");

fn quire(arguments: &[&str]) -> Command {
    let mut command = Command::new(QUIRE);
    command.args(arguments).env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR")).env_remove("COLUMNS");
    command
}

fn output(arguments: &[&str]) -> Output {
    quire(arguments).output().expect("quire runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("what is shown is text")
}

fn gcc() -> String {
    bundled::directory().join("gcc.qtrace").to_str().expect("a name that is text").to_owned()
}

fn widest(shown: &str) -> usize {
    shown.lines().map(|line| line.trim_end_matches('\r').chars().count()).max().unwrap_or(0)
}

/// Every command that shows tables.
fn tables(gcc: &str, calibration: &str) -> Vec<Vec<String>> {
    let replay = ["replay", "--rounds", "1"];
    let all: Vec<Vec<&str>> = vec![
        [&replay[..], &["--folio", "sweep", gcc]].concat(),
        [&replay[..], &[gcc]].concat(),
        vec!["bench", "boot", "unmap", "--smoke", "--only", "64KiB/2cpus"],
        vec!["calibrate", "--load", calibration],
    ];
    all.into_iter().map(|words| words.into_iter().map(str::to_owned).collect()).collect()
}

#[test]
fn tables_fit_the_terminal() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let calibration = directory.path().join("c.json");
    let calibration = calibration.to_str().expect("a name that is text");
    fs::write(calibration, crate::calibrate::calibration()).expect("it is written");
    for arguments in tables(&gcc(), calibration) {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let shown = Pty::new(80).run(&mut quire(&arguments));
        assert!(shown.contains('│'), "a table: {shown}");
        assert!(widest(&shown) <= 80, "{} columns:\n{shown}", widest(&shown));
        let table = |shown: &str| -> String {
            shown
                .lines()
                .filter(|line| line.starts_with(['│', '┌', '╞', '└']))
                .map(|line| format!("{line}\n"))
                .collect()
        };
        let redirected = |columns: Option<&str>, more: &[&str]| {
            let mut command = quire(&[&arguments[..], more].concat());
            if let Some(columns) = columns {
                command.env("COLUMNS", columns);
            }
            table(&text(&command.output().expect("quire runs").stdout))
        };
        let usual = widest(&redirected(None, &[]));
        assert!(usual <= 100);
        assert!(widest(&redirected(Some("60"), &[])) <= 60);
        assert!(widest(&redirected(Some("60"), &["--wide"])) >= usual);
    }
}

/// On a copy of the settings, so that any user may run it.
#[test]
fn what_verify_shows_fits_the_terminal() {
    let copy = Copy::new();
    let options =
        ["verify", "--sizes", "16K,64K,2M", "--runs", "2", "--sampled-runs", "0", "--run-off", "10"];
    let shown = Pty::new(80).run(copy.quire(&options).arg(&*copy.trace));
    for said in ["peak RSS, MiB", "64K ", "Peak RSS: ", "Advice: ", "further turns: beside"] {
        assert!(shown.contains(said), "{said}: {shown}");
    }
    assert!(widest(&shown) <= 80, "{} columns:\n{shown}", widest(&shown));
    // A terminal gets lines that are wrapped, and a file those that are not: none of them needed it.
    let whole = copy.quire(&options).arg(&*copy.trace).output().expect("quire runs");
    let whole = text(&whole.stdout);
    assert!(whole.contains("Advice: ") && widest(&whole) <= 80, "{} columns:\n{whole}", widest(&whole));
}

#[test]
fn a_sweep_says_what_it_leaves_out_and_shows_it_when_asked() {
    let gcc = gcc();
    let arguments = ["replay", "--rounds", "1", "--folio", "sweep", &gcc];
    let narrow = Pty::new(60).run(&mut quire(&arguments));
    for kept in ["folios", "faults", "peak", "wasted", "fault", "left out here, shown by --wide: absorbed"] {
        assert!(narrow.contains(kept), "{kept}:\n{narrow}");
    }
    assert!(widest(&narrow) <= 60, "{} columns:\n{narrow}", widest(&narrow));
    // 2 MiB come last, and the table is not cut off before them.
    assert!(narrow.contains("│ 2M "), "{narrow}");
    let wide = text(&output(&[&arguments[..], &["--wide"]].concat()).stdout);
    assert!(
        wide.contains("page tables KiB") && wide.contains("absorbed") && !wide.contains("left out"),
        "{wide}"
    );
}

/// A trace whose every name would steer a terminal.
fn hostile(path: &std::path::Path) {
    let name = "\u{1b}]0;title\u{7}\u{1b}[2Jname\nsecond\u{202e}line";
    let header = Header {
        version: VERSION,
        clock: Clock::Monotonic,
        page_size: 4096,
        kernel: name.into(),
        cpus: 1,
        cpu: name.into(),
        command: vec![name.into(), name.into()],
        program: Program { name: name.into(), version: name.into() },
        tier: Tier::Privileged,
        thp_disabled: true,
        faults: FaultKinds::of(Tier::Privileged),
        ring_bytes: 4096,
        limits: None,
        attached: false,
        totals: Totals::default(),
        events: 0,
    };
    let mut writer = TraceWriter::create(path, &header).expect("a trace is started");
    let name = writer.path(name);
    let (minor_faults, major_faults, recorded_faults) = (None, None, 0);
    let exit = EventKind::ProcessExit { minor_faults, major_faults, recorded_faults };
    for (time_ns, kind) in [(1, EventKind::Exec { name }), (2, exit)] {
        writer.write(&Event { time_ns, pid: 10, tid: 10, kind }).expect("an event is taken");
    }
    writer.finish(Totals::default()).expect("it is written");
}

fn assert_harmless(shown: &[u8]) {
    let shown = text(shown);
    let steers = |letter: char| letter.is_control() && letter != '\n' || letter == '\u{202e}';
    assert!(!shown.contains(steers), "{shown:?}");
    assert!(!shown.lines().any(|line| line.starts_with("second")), "a name begins a line: {shown:?}");
}

#[test]
fn names_cannot_steer_the_terminal() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("\u{1b}[31m\nsecond.qtrace");
    let name = path.to_str().expect("a name that is text");
    hostile(&path);
    for arguments in [vec!["replay", name], vec!["replay", "--folio", "sweep", "--rounds", "1", name]] {
        let replayed = output(&arguments);
        assert!(replayed.status.success(), "{}", text(&replayed.stderr));
        assert!(text(&replayed.stdout).contains("\\x1B]0;title"), "{}", text(&replayed.stdout));
        assert_harmless(&replayed.stdout);
        assert_harmless(&replayed.stderr);
    }
    fs::write(&path, "none").expect("it can be written");
    let missing = format!("{name}/missing\n");
    let trace = directory.path().join("t.qtrace");
    let trace = trace.to_str().expect("a name that is text");
    let option = format!("--{name}");
    let refused = [
        vec!["replay", name],
        vec!["replay", &missing],
        vec!["calibrate", "--load", name],
        vec!["calibrate", "--smoke", "--save", &missing],
        vec!["bench", "--smoke", name],
        vec!["bench", "--smoke", "boot", "--json", &missing],
        vec!["record", "-o", &missing, "--", "true"],
        vec!["record", "-o", trace, "--", &missing],
        vec![name],
        vec!["replay", &option],
        vec!["replay", "--memory", name, trace],
        vec!["record", "--ring", name, "--", "true"],
        vec!["bench", "postcopy", "--link-rate", name],
        vec!["bench", "postcopy", "--link-latency", name],
    ];
    for arguments in refused {
        let refused = output(&arguments);
        assert!(!refused.status.success(), "{arguments:?}");
        assert_harmless(&refused.stderr);
        assert!(text(&refused.stderr).contains("[31m"), "the name is told: {}", text(&refused.stderr));
    }
    let recorded = output(&["record", "-o", name, "--", "true"]);
    assert!(recorded.status.success(), "{}", text(&recorded.stderr));
    assert_harmless(&recorded.stderr);
}

/// A file name that is no text, as any program may have one.
#[test]
fn a_name_that_is_no_text_is_shown_and_written() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join(std::ffi::OsString::from_vec(b"\xff\x1b.qtrace".to_vec()));
    let recorded = quire(&["record", "-o"]).arg(&path).args(["--", "true"]).output().expect("quire runs");
    assert!(recorded.status.success());
    assert_harmless(&recorded.stderr);
    assert!(TraceReader::open(&path).expect("it is there").all(|event| event.is_ok()));
}

/// A pipe that nothing reads.
fn closed_pipe() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let gcc = gcc();
    let replay = ["replay", "--rounds", "1", &gcc];
    let all: [&[&str]; 5] = [
        &replay,
        &[&replay[..], &["--json", "-"]].concat(),
        &["bench", "--list"],
        &["bench", "boot", "--smoke"],
        &["record", "-o", "-", "--", "true"],
    ];
    for arguments in all {
        let output = quire(arguments).stdout(closed_pipe()).output().expect("quire runs");
        assert_eq!(
            output.status.signal(),
            Some(nix::libc::SIGPIPE),
            "{arguments:?}: {}",
            text(&output.stderr)
        );
        let stderr = text(&output.stderr);
        let talks = ["roken pipe", "panic", "os error"].iter().any(|word| stderr.contains(word));
        assert!(!talks, "{arguments:?}: {stderr}");
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let trace = directory.path().join("t.qtrace");
    let trace = trace.to_str().expect("a name that is text");
    let status = quire(&["record", "-o", trace, "--", "sh", "-c", "exit 3"])
        .stderr(closed_pipe())
        .status()
        .expect("quire runs");
    assert_eq!(status.code(), Some(3), "that nothing reads the summary is no reason to fail");
}

#[test]
fn a_trace_is_not_written_to_a_terminal() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let touched = directory.path().join("touched");
    let touched = touched.to_str().expect("a name that is text");
    let shown = Pty::new(80).run(&mut quire(&["record", "-o", "-", "--", "touch", touched]));
    assert_eq!(shown, "", "nothing of a trace is on the screen");
    assert!(!fs::exists(touched).expect("the directory is readable"), "the program was not started");
}

#[test]
fn the_exit_codes_are_those_of_shells() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let trace = directory.path().join("t.qtrace");
    let trace = trace.to_str().expect("a name that is text");
    let codes =
        [("no-such-program-anywhere", 127), ("/no/such/program", 127), ("/etc/passwd", 126), ("/", 126)];
    for (program, code) in codes {
        let refused = output(&["record", "-o", trace, "--", program]);
        assert_eq!(refused.status.code(), Some(code), "{program}: {}", text(&refused.stderr));
        assert_eq!(text(&refused.stderr).lines().count(), 1);
    }
    let refused = output(&["record", "-o", "/no/such/directory/t.qtrace", "--", "true"]);
    assert_eq!(refused.status.code(), Some(125), "{}", text(&refused.stderr));
}

#[test]
fn help_and_page_list_the_same_exit_codes() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/exit-codes.md"))
        .expect("the page");
    let (_, block) = page.split_once("```text\n").expect("a list");
    let (block, _) = block.split_once("```").expect("the end of the list");
    let help = text(&output(&["--help"]).stdout);
    assert!(help.trim_end().ends_with(block.trim_end()), "{help}");
    // Those that no other test shows.
    assert_eq!(output(&["--help"]).status.code(), Some(0));
    assert_eq!(output(&["replay", "no-such-file"]).status.code(), Some(1));
    assert_eq!(output(&["bench", "no-such-experiment"]).status.code(), Some(2));
    assert_eq!(output(&["no-such-command"]).status.code(), Some(2));
}

#[test]
fn completions_and_man_pages_name_every_command() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = text(&output(&["completions", shell]).stdout);
        assert!(script.contains("replay") && script.contains("folio"), "{shell}: {script}");
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let place = directory.path().to_str().expect("a name that is text");
    assert!(output(&["man", place]).status.success());
    let page = fs::read_to_string(directory.path().join("quire.1")).expect("the page of the command");
    assert!(page.contains("128 + N") && page.contains("quire\\-record"), "{page}");
    assert!(directory.path().join("quire-replay.1").exists());
    assert_eq!(output(&["man", "/no/such/directory"]).status.code(), Some(1));
}

/// It was taken for the program to run.
#[test]
fn a_mistyped_option_is_named_with_the_one_that_was_meant() {
    for (arguments, meant) in [
        (["record", "--quite", "-o", "t.qtrace", "--", "true"].as_slice(), "'--quiet'"),
        (&["boot", "--cpu", "4", "--", "true"], "'--cpus'"),
    ] {
        let output = output(arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("unexpected argument") && said.contains(meant), "{said}");
    }
}

/// What follows the program is its own.
#[test]
fn options_behind_the_program_are_left_to_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let trace = directory.path().join("t.qtrace").to_string_lossy().into_owned();
    let output =
        output(&["record", "--quiet", "-o", &trace, "sh", "-c", "echo \"$@\"", "sh", "--quite", "-o"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "--quite -o\n".to_owned()));
}
