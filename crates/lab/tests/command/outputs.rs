//! What the command does to the names it is given for output: devices, pipes and links stay what they are, files are
//! replaced whole, with the rights that the user gave them.

use crate::bundled;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;

use lab::trace::{Header, TraceReader};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::mkfifo;
use tempfile::TempDir;

const QUIRE: &str = env!("CARGO_BIN_EXE_quire");

fn directory() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().to_owned();
    (directory, path)
}

fn quire(arguments: &[&str]) -> Command {
    let mut command = Command::new(QUIRE);
    command.args(arguments).env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    command
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a name that is text")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn record(target: &Path) -> Output {
    quire(&["record", "--quiet", "-o", text(target), "--", "true"]).output().expect("quire runs")
}

fn gcc() -> String {
    text(&bundled::directory().join("gcc.qtrace")).to_owned()
}

/// The ways in which the command writes files, each as the arguments before the name of the file and those behind it.
fn ways() -> Vec<(Vec<&'static str>, Vec<String>)> {
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    vec![
        (vec!["record", "--quiet", "-o"], words(&["--", "true"])),
        (vec!["replay", "--rounds", "1", "--json"], vec![gcc()]),
        (vec!["bench", "boot", "--smoke", "--json"], vec![]),
        (vec!["calibrate", "--smoke", "--save"], vec![]),
    ]
}

fn run(way: &(Vec<&str>, Vec<String>), target: &Path) -> Output {
    quire(&way.0).arg(target).args(&way.1).output().expect("quire runs")
}

/// A whole trace.
fn check_trace(bytes: &[u8]) -> Header {
    let mut reader = TraceReader::new(bytes).expect("a trace");
    let header = reader.header().clone();
    let events = reader.by_ref().collect::<Result<Vec<_>, _>>().expect("it is whole");
    assert_eq!(events.len() as u64, header.events);
    header
}

/// What is in a directory, apart from what a test put there.
fn others(directory: &Path, known: &[&str]) -> Vec<String> {
    let names = fs::read_dir(directory).expect("it is readable");
    let names = names.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
    names.filter(|name| !known.contains(&name.as_str())).collect()
}

/// A node like one of `/dev`, since a program with a fault may replace it; none where this user may not make any.
fn node(path: &Path, name: &str, minor: u64) -> Option<PathBuf> {
    let node = path.join(name);
    mknod(&node, SFlag::S_IFCHR, Mode::from_bits_truncate(0o666), makedev(1, minor)).ok()?;
    // A file system may be mounted without devices.
    fs::OpenOptions::new().write(true).open(&node).ok().map(|_| node)
}

#[test]
fn a_device_stays_a_device() {
    let (_directory, path) = directory();
    let (Some(null), Some(full)) = (node(&path, "null", 3), node(&path, "full", 7)) else {
        return eprintln!("this user may not make devices");
    };
    for way in ways() {
        for (node, fits) in [(&null, true), (&full, false)] {
            let output = run(&way, node);
            let stderr = stderr(&output);
            assert_eq!(output.status.success(), fits, "{:?}: {stderr}", way.0);
            assert!(fits || stderr.contains("No space left on device"), "{stderr}");
            let kind = fs::symlink_metadata(node).expect("it is there").file_type();
            assert!(kind.is_char_device(), "{:?} made {kind:?} of a device", way.0);
        }
        assert_eq!(others(&path, &["null", "full"]), [""; 0]);
    }
}

#[test]
fn a_fifo_and_a_socket_are_written_to() {
    let (_directory, path) = directory();
    let (fifo, socket) = (path.join("fifo"), path.join("socket"));
    mkfifo(&fifo, Mode::from_bits_truncate(0o600)).expect("a FIFO");
    let listener = UnixListener::bind(&socket).expect("a socket");
    for way in ways().into_iter().take(2) {
        let (of_fifo, of_socket) = thread::scope(|scope| {
            let fifo_reader = scope.spawn(|| fs::read(&fifo).expect("it can be read"));
            let socket_reader = scope.spawn(|| {
                let mut bytes = Vec::new();
                listener.accept().expect("a writer").0.read_to_end(&mut bytes).expect("it can be read");
                bytes
            });
            for target in [&fifo, &socket] {
                let output = run(&way, target);
                assert!(output.status.success(), "{}", stderr(&output));
            }
            (fifo_reader.join().expect("it ends"), socket_reader.join().expect("it ends"))
        });
        for bytes in [of_fifo, of_socket] {
            match way.0[0] {
                "record" => assert!(check_trace(&bytes).events > 0),
                _ => assert!(serde_json::from_slice::<serde_json::Value>(&bytes).is_ok()),
            }
        }
    }
    let kind = |path: &Path| fs::symlink_metadata(path).expect("it is there").file_type();
    assert!(kind(&fifo).is_fifo() && kind(&socket).is_socket());
}

#[test]
fn a_link_stays_and_what_it_leads_to_is_replaced() {
    let (_directory, path) = directory();
    fs::create_dir(path.join("elsewhere")).expect("a directory");
    let (link, real) = (path.join("link"), path.join("elsewhere/real"));
    symlink("elsewhere/real", &link).expect("a link");
    for way in ways().into_iter().take(2) {
        let _ = fs::remove_file(&real);
        // First the link leads to nothing, then to a file with a mode of its own.
        for mode in [None, Some(0o640)] {
            if let Some(mode) = mode {
                fs::set_permissions(&real, fs::Permissions::from_mode(mode)).expect("the file is ours");
            }
            let before = fs::metadata(&real).ok().map(|there| there.ino());
            let output = run(&way, &link);
            assert!(output.status.success(), "{}", stderr(&output));
            assert!(fs::symlink_metadata(&link).expect("it is there").file_type().is_symlink());
            let there = fs::metadata(&real).expect("it is written");
            assert_ne!(Some(there.ino()), before, "a file is replaced in one step");
            assert!(there.len() > 0 && mode.is_none_or(|mode| there.mode() & 0o7777 == mode));
        }
        assert_eq!(others(&path.join("elsewhere"), &["real"]), [""; 0]);
    }
    let (first, second) = (path.join("first"), path.join("second"));
    symlink("second", &first).expect("a link");
    symlink("first", &second).expect("a link");
    assert_eq!(record(&first).status.code(), Some(125), "a loop of links leads nowhere");
}

#[test]
fn a_file_that_may_not_be_written_is_not_replaced() {
    let (_directory, path) = directory();
    let file = path.join("read-only");
    fs::write(&file, "before").expect("a file");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o444)).expect("it is ours");
    if fs::OpenOptions::new().write(true).open(&file).is_ok() {
        return eprintln!("this user may write any file");
    }
    assert_eq!(record(&file).status.code(), Some(125));
    assert_eq!(fs::read(&file).expect("it is there"), b"before");
}

#[test]
fn a_dash_is_standard_output_for_the_trace_alone() {
    let output =
        quire(&["record", "-o", "-", "--", "echo", "said by the program"]).output().expect("quire runs");
    assert!(output.status.success(), "{}", stderr(&output));
    check_trace(&output.stdout);
    assert!(stderr(&output).contains("said by the program"), "{}", stderr(&output));
    assert!(stderr(&output).contains("-: "), "the summary is there: {}", stderr(&output));
}

/// What a shell has opened is written to where the shell is, and not emptied.
#[test]
fn the_name_of_standard_output_is_standard_output() {
    let (_directory, path) = directory();
    let file = path.join("file");
    // By another name, which a program with a fault may replace.
    let link = path.join("stdout");
    symlink("/dev/stdout", &link).expect("a link");
    let script = "echo before; \"$0\" record --quiet -o \"$1\" -- echo aside; echo after";
    let output = Command::new("sh")
        .args(["-c", script, QUIRE, text(&link)])
        .stdout(File::create(&file).expect("a file"))
        .output()
        .expect("a shell runs");
    let bytes = fs::read(&file).expect("it is there");
    let trace = bytes.strip_prefix(b"before\n").and_then(|rest| rest.strip_suffix(b"after\n"));
    check_trace(trace.unwrap_or_else(|| panic!("the shell's lines are gone: {}", stderr(&output))));
    assert_eq!(stderr(&output), "aside\n");
}

#[test]
fn the_mask_of_the_user_holds() {
    let (_directory, path) = directory();
    for way in ways().into_iter().take(3) {
        for (mask, mode) in [("077", 0o600), ("022", 0o644), ("002", 0o664)] {
            let file = path.join(format!("{}-{mask}", way.0[0]));
            let output = Command::new("sh")
                .args(["-c", "umask $0; exec \"$@\"", mask, QUIRE])
                .args(&way.0)
                .arg(&file)
                .args(&way.1)
                .env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"))
                .output()
                .expect("a shell runs");
            assert!(output.status.success(), "{}", stderr(&output));
            let found = fs::metadata(&file).expect("it is written").mode() & 0o7777;
            assert_eq!(found, mode, "{} under {mask}: {found:o}", way.0[0]);
        }
    }
}

#[test]
fn arguments_can_be_left_out() {
    let (_directory, path) = directory();
    let file = path.join("t.qtrace");
    let arguments =
        ["record", "--quiet", "--no-arguments", "-o", text(&file), "--", "true", "--password=secret"];
    assert!(quire(&arguments).status().expect("quire runs").success());
    let bytes = fs::read(&file).expect("it is written");
    let header = check_trace(&bytes);
    assert_eq!((header.command, header.program.name.as_str()), (vec!["true".to_owned()], "true"));
}

/// Faults by the hundred thousand, and an exit code of its own.
const LARGE: &str =
    "for i in 1 2 3 4 5 6; do dd if=/dev/zero of=/dev/null bs=64M count=1 2>/dev/null; done; exit 7";

fn check_cut(output: &Output, file: &Path) {
    let stderr = stderr(output);
    assert_eq!(output.status.code(), Some(7), "{stderr}");
    assert_eq!(stderr.lines().filter(|line| line.starts_with("quire: ")).count(), 1, "{stderr}");
    let header = check_trace(&fs::read(file).unwrap_or_else(|error| panic!("{error}: {stderr}")));
    assert!(header.events > 0 && header.totals.lost > 0, "{} {:?}", header.events, header.totals);
    assert!(stderr.contains(&format!("has the first {} of", header.events)), "{stderr}");
    let replayed = quire(&["replay", "--rounds", "1", text(file)]).output().expect("quire runs");
    assert!(replayed.status.success(), "{}", String::from_utf8_lossy(&replayed.stderr));
    assert!(String::from_utf8_lossy(&replayed.stdout).contains("records were lost"));
}

#[test]
fn a_limit_on_files_cuts_the_trace_and_nothing_else() {
    let (_directory, path) = directory();
    let file = path.join("t.qtrace");
    let limited = |blocks: &str, script: &str| {
        Command::new("sh")
            .args(["-c", "ulimit -f $0; exec \"$1\" record --quiet -o \"$2\" -- sh -c \"$3\"", blocks, QUIRE])
            .arg(&file)
            .arg(script)
            .output()
            .expect("a shell runs")
    };
    check_cut(&limited("32", LARGE), &file);
    assert_eq!(others(&path, &["t.qtrace"]), [""; 0], "no partial file is left");
    let before = fs::read(&file).expect("it is there");
    let output = limited("0", "exit 7");
    assert_eq!(output.status.code(), Some(125), "nothing fits: {}", stderr(&output));
    assert!(stderr(&output).contains("cannot write"), "{}", stderr(&output));
    assert_eq!(fs::read(&file).expect("it is there"), before);
    assert_eq!(others(&path, &["t.qtrace"]), [""; 0]);
}

/// A file system in memory that is unmounted with the value.
struct Small(TempDir);

impl Small {
    fn of(size: &str) -> Option<Small> {
        use nix::mount::{MsFlags, mount};
        let directory = tempfile::tempdir().expect("a temporary directory");
        let options = format!("size={size}");
        mount(Some("tmpfs"), directory.path(), Some("tmpfs"), MsFlags::empty(), Some(options.as_str()))
            .ok()?;
        Some(Small(directory))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        nix::mount::umount(self.0.path()).expect("nothing uses it");
    }
}

#[test]
fn a_full_disk_cuts_the_trace_and_nothing_else() {
    let Some(small) = Small::of("16k") else { return eprintln!("this user may not mount anything") };
    let file = small.0.path().join("t.qtrace");
    let output = quire(&["record", "--quiet", "-o", text(&file), "--", "sh", "-c", LARGE])
        .output()
        .expect("quire runs");
    check_cut(&output, &file);
    assert_eq!(others(small.0.path(), &["t.qtrace"]), [""; 0]);
}

/// What cannot go on a device is lost, but how the program ended is told.
#[test]
fn a_full_device_does_not_hide_how_the_program_ended() {
    let (_directory, path) = directory();
    let Some(full) = node(&path, "full", 7) else { return eprintln!("this user may not make devices") };
    assert_eq!(record(&full).status.code(), Some(125));
    let arguments = ["record", "--quiet", "-o", text(&full), "--", "sh", "-c", "exit 7"];
    let output = quire(&arguments).stdout(Stdio::null()).output().expect("quire runs");
    assert_eq!(output.status.code(), Some(7));
    let stderr = stderr(&output);
    assert!(stderr.lines().count() == 1 && stderr.contains("status 7"), "{stderr}");
}

/// Nothing is kept until the end: what a pipe takes may be larger than all that there is for temporary files.
#[test]
fn an_export_goes_to_a_pipe_at_once() {
    let mut export = quire(&["export", &gcc()]);
    let output = export.env("TMPDIR", "/nonexistent").output().expect("quire runs");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(output.stdout.iter().filter(|byte| **byte == b'\n').count() > 1000);
}

#[test]
fn an_export_whose_reader_has_enough_ends_as_others_do() {
    let script = "trap '' EXIT; { \"$0\" export \"$1\"; echo $? >&2; } | head -1";
    let mut shell = Command::new("sh");
    let output = shell.args(["-c", script, QUIRE, &gcc()]).output().expect("a shell runs");
    assert!(output.stdout.starts_with(b"time_ns,"), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(stderr(&output), "141\n", "by SIGPIPE, without a message");
}
