//! A terminal of a chosen width.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use nix::pty::{OpenptyResult, Winsize, openpty};

/// A terminal, not yet used.
pub(crate) struct Pty {
    screen: File,
    line: OwnedFd,
}

impl Pty {
    /// A terminal with so many columns.
    pub(crate) fn new(columns: u16) -> Pty {
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let OpenptyResult { master, slave } = openpty(&size, None).expect("a terminal");
        Pty { screen: master.into(), line: slave }
    }

    /// What a command shows on its standard output, which is the terminal.
    pub(crate) fn run(self, command: &mut Command) -> String {
        let Pty { mut screen, line } = self;
        let mut child = command.stdout(line).stderr(Stdio::null()).spawn().expect("it starts");
        // The command keeps the line open in this process.
        command.stdout(Stdio::null());
        let mut shown = Vec::new();
        // A terminal whose last user has gone is an error and not an end.
        let _ = screen.read_to_end(&mut shown);
        child.wait().expect("it ends");
        String::from_utf8(shown).expect("what is shown is text")
    }
}
