//! `quire export`: what other programs read is what the trace says.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::small_trace::{fault, program};
use lab::trace::{Access, EventKind, Totals, TraceReader, TraceWriter};

fn trace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/gcc.qtrace")
}

fn export(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    command.arg("export").args(arguments).arg(trace()).output().unwrap()
}

/// Addresses that the compiler proper, process `pid`, faulted at, and whether it stored.
fn faults(pid: u32) -> Vec<(u64, bool)> {
    let events = TraceReader::open(trace()).unwrap().map(Result::unwrap).filter(|event| event.pid == pid);
    let resolved = |event: lab::trace::Event| match event.kind {
        EventKind::Fault { addr, access, duration_ns: Some(_), .. } => Some((addr, access == Access::Write)),
        EventKind::Populate { .. } => panic!("none is recorded here"),
        _ => None,
    };
    events.filter_map(resolved).collect()
}

/// The process that touches most pages.
const CC1: u32 = 3118;

#[test]
fn a_simulator_of_memory_gets_loads_and_stores() {
    let output = export(&["--format", "ramulator"]);
    assert!(output.status.success());
    let lines: Vec<(u64, bool)> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| {
            let (kind, addr) = line.split_once(" 0x").unwrap();
            assert!(kind == "LD" || kind == "ST", "{line}");
            (u64::from_str_radix(addr, 16).unwrap(), kind == "ST")
        })
        .collect();
    assert_eq!(lines, faults(CC1));
}

#[test]
fn a_simulator_of_processors_gets_instructions_of_64_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gcc.champsimtrace");
    assert!(export(&["--format", "champsim", "-o", file.to_str().unwrap()]).status.success());
    let bytes = std::fs::read(file).unwrap();
    assert_eq!(bytes.len() % 64, 0);
    let word = |part: &[u8]| u64::from_le_bytes(part.try_into().unwrap());
    let touches: Vec<(u64, bool)> = bytes
        .chunks(64)
        .map(|instruction| {
            // No branch, no registers; one address, stored to or loaded.
            assert!(word(&instruction[..8]) != 0 && instruction[8..16] == [0; 8]);
            let (stored, loaded) = (word(&instruction[16..24]), word(&instruction[32..40]));
            assert!((stored == 0) != (loaded == 0) && instruction[40..] == [0; 24]);
            if stored == 0 { (loaded, false) } else { (stored, true) }
        })
        .collect();
    assert_eq!(touches, faults(CC1));
}

/// Its reader takes an address space and a page number from each line, and skips lines that start with `#`.
#[test]
fn a_simulator_of_virtual_memory_gets_page_numbers() {
    let output = export(&["--format", "mimicos"]);
    assert!(output.status.success());
    let pages: Vec<(u32, u64)> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| {
            let (space, page) = line.split_once(' ').unwrap();
            (space.parse().unwrap(), page.parse().unwrap())
        })
        .collect();
    let expected: Vec<(u32, u64)> = faults(CC1).into_iter().map(|(addr, _)| (0, addr >> 12)).collect();
    assert_eq!(pages, expected);
}

#[test]
fn a_table_has_every_event() {
    let output = export(&[]);
    let mut table = csv::Reader::from_reader(output.stdout.as_slice());
    let rows: Vec<csv::StringRecord> = table.records().map(Result::unwrap).collect();
    let events = TraceReader::open(trace()).unwrap().header().events;
    assert_eq!(rows.len() as u64, events);
    let faults_of_cc1 = rows.iter().filter(|row| &row[3] == "fault" && row[1] == CC1.to_string()).count();
    assert_eq!(faults_of_cc1, faults(CC1).len());
    assert!(rows.iter().any(|row| &row[3] == "mmap" && row[6].contains(" = ")));
}

#[test]
fn a_process_that_is_not_there_is_refused() {
    for format in ["csv", "ramulator", "champsim", "mimicos"] {
        let output = export(&["--format", format, "--pid", "1"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && output.stdout.is_empty(), "{said}");
        assert!(said.contains("gcc.qtrace") && said.contains("leave out --pid"), "{said}");
    }
}

#[test]
fn a_fault_of_an_ordinary_users_recording_is_not_said_to_be_unresolved() {
    let mut trace = program();
    trace.as_user();
    trace.event(10, fault(0x7ffd_0002_0000, Access::Write, false));
    let file = trace.write();
    let output = Command::new(env!("CARGO_BIN_EXE_quire")).arg("export").arg(&*file).output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    let last = table.lines().last().unwrap();
    assert!(last.contains(",fault,") && last.ends_with(",unknown"), "{table}");
}

#[test]
fn a_trace_without_events_is_a_table_without_rows() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.qtrace");
    let header = TraceReader::open(trace()).unwrap().header().clone();
    TraceWriter::create(&file, &header).unwrap().finish(Totals::default()).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_quire")).arg("export").arg(&file).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 1);
}

/// A full disk is a fault of the output's, whatever the output is called.
#[test]
fn output_without_room_is_named_and_the_trace_is_not() {
    let full = || std::fs::File::create("/dev/full").unwrap();
    let expected =
        "quire: cannot write standard output; make room for it: No space left on device (os error 28)\n";
    let gcc = trace().to_str().unwrap().to_owned();
    let commands: [&[&str]; 5] = [
        &["export", &gcc],
        &["export", "--format", "champsim", &gcc],
        &["bench", "--list"],
        &["completions", "bash"],
        &["restore"],
    ];
    for arguments in commands {
        let output =
            Command::new(env!("CARGO_BIN_EXE_quire")).args(arguments).stdout(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(String::from_utf8_lossy(&output.stderr), expected, "{arguments:?}");
    }
    let output = export(&["-o", "/dev/full"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.starts_with("quire: cannot write /dev/full; make room for it"), "{said}");
}
