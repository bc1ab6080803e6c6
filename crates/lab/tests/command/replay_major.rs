//! Recorded faults that waited for a disk, which a replay does not have.

use std::process::Command;

use crate::small_trace::{anonymous, fault, program};
use lab::trace::{Access, EventKind};

const BASE: u64 = 1 << 30;
/// What the disk took, in nanoseconds: far more than any other fault of these traces.
const DISK_NS: u64 = 15_000_000;

/// A fault that waited for a disk.
fn major(addr: u64) -> EventKind {
    match fault(addr, Access::Write, false) {
        EventKind::Fault { addr, access, protection, kernel_mode, .. } => EventKind::Fault {
            addr,
            access,
            protection,
            kernel_mode,
            major: true,
            duration_ns: Some(DISK_NS),
        },
        other => other,
    }
}

#[test]
fn what_a_disk_took_is_no_time_of_linux() {
    let mut trace = program();
    trace.event(10, anonymous(BASE, 3 << 12));
    trace.event(10, fault(BASE, Access::Write, false));
    trace.event(10, major(BASE + (1 << 12)));
    trace.event(10, major(BASE + (2 << 12)));
    trace.exit(10);
    let file = trace.write();
    let replay = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
        let command = command.arg("replay").args(arguments).arg(&file);
        let output = command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR")).output().expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };

    let line: serde_json::Value = serde_json::from_str(&replay(&["--json", "-"])).expect("one line");
    assert_eq!(line["faults_major"], 2);
    assert_eq!(line["major_ns"], 2 * DISK_NS);
    assert_eq!(line["faults"]["anon"]["count"], 3, "they are faults all the same");
    assert_eq!(line["faults"]["anon"]["linux_ns"], 1000);

    let told = "2 of the recorded faults waited for a disk, 30.0 ms in all";
    for arguments in [&[][..], &["--folio", "sweep"]] {
        let text = replay(arguments);
        assert!(text.contains(told), "{text}");
    }
}
