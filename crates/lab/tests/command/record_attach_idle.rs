//! A recording of a process that does nothing meanwhile.

use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use crate::advise::{shown, words};
use crate::recorder::{Killed, Recording, can_attach, copy_program};

#[test]
fn a_process_that_does_nothing_was_recorded_for_as_long_as_it_was_followed() {
    if !can_attach() {
        return;
    }
    let sleeper = Killed(Command::new("sleep").arg("1000").spawn().expect("sleep runs"));
    let pid = sleeper.0.id().to_string();
    let mut run = Recording::attached(&["--pid", &pid, "--duration", "200ms"]);
    assert!(run.end().success(), "{}", run.stderr());
    let (header, _) = run.trace();
    let recorded = header.totals.wall_ns;
    assert!((200_000_000..60_000_000_000).contains(&recorded), "{recorded} ns");
    let said = words(&shown(&run.path("t.qtrace"), &[]));
    assert!(said.contains("recorded for") && said.contains("while it ran"), "{said}");
    assert!(!said.contains("ran 0.00 ns"), "{said}");
}

/// The names of a process and of its files are bytes that need be no text.
#[test]
fn a_process_whose_names_are_no_text_is_recorded() {
    if !can_attach() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let program = directory.path().join(std::ffi::OsStr::from_bytes(b"\xc3"));
    copy_program("/bin/sleep", &program);
    let sleeper = Killed(Command::new(program).arg("1000").spawn().expect("sleep runs"));
    let pid = sleeper.0.id().to_string();
    let mut run = Recording::attached(&["--pid", &pid, "--duration", "100ms"]);
    assert!(run.end().success(), "{}", run.stderr());
    let (header, _) = run.trace();
    assert!(header.program.name == "\u{fffd}" && header.command[1] == "1000", "{:?}", header.command);
}
