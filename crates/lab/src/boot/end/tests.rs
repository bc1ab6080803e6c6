use std::os::unix::process::ExitStatusExt;

use super::*;

fn end(line: Option<&str>, status: i32) -> End {
    End::of(line, ExitStatus::from_raw(status << 8))
}

#[test]
fn the_last_line_says_how_a_run_ended() {
    for (line, expected, code) in [
        ("exited 0", End::Exited(0), 0),
        ("exited 255", End::Exited(255), 255),
        ("killed 11", End::Killed(11), 139),
        ("not started ENOENT", End::NotStarted(Some("ENOENT".to_owned())), 127),
        ("not started ENOEXEC", End::NotStarted(Some("ENOEXEC".to_owned())), 126),
        ("failed", End::KernelFailed, 123),
    ] {
        let end = end(Some(&format!("[quire] end: {line}")), 0xff);
        assert_eq!((end.exit_code(), end), (code, expected), "{line}");
    }
}

#[test]
fn without_that_line_the_status_says_it() {
    for (status, expected, code) in [
        (0x03, End::Exited(0), 0),
        (0x09, End::Exited(3), 3),
        (0x83 + 2 * 11, End::Killed(11), 139),
        (0xfd, End::NotStarted(None), 126),
        (0xff, End::KernelFailed, 123),
        // QEMU's own.
        (0, End::Unsaid, 125),
        (1, End::Unsaid, 125),
        (2, End::Unsaid, 125),
    ] {
        for line in [None, Some("[quire] end: of the world")] {
            let end = end(line, status);
            assert_eq!((end.exit_code(), end), (code, expected.clone()), "{status}");
        }
    }
    assert_eq!(End::of(None, ExitStatus::from_raw(9)), End::Unsaid, "QEMU was killed");
}
