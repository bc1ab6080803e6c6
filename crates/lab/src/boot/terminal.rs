//! The user's terminal while the guest has it: keys go to the guest as they are typed.

use std::io::{self, Write};
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::stdio::{stdin, stdout};
use rustix::termios::{
    InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios, isatty, tcgetattr, tcgetwinsize,
    tcsetattr,
};

/// What a terminal sends for the end of a file.
const END_OF_FILE: u8 = 0x04;

/// The terminal of standard input, without echo, lines and signals of its own until the value is dropped.
pub(super) struct Raw {
    before: Termios,
}

impl Raw {
    /// Changes the terminal, if standard input is one. The guest makes the echo, and a signal of ^C.
    pub(super) fn enter() -> io::Result<Option<Raw>> {
        if !isatty(stdin()) {
            return Ok(None);
        }
        let before = tcgetattr(stdin())?;
        let mut raw = before.clone();
        raw.input_modes -= InputModes::IGNBRK
            | InputModes::BRKINT
            | InputModes::PARMRK
            | InputModes::ISTRIP
            | InputModes::INLCR
            | InputModes::IGNCR
            | InputModes::ICRNL
            | InputModes::IXON;
        raw.local_modes -= LocalModes::ECHO
            | LocalModes::ECHONL
            | LocalModes::ICANON
            | LocalModes::ISIG
            | LocalModes::IEXTEN;
        raw.special_codes[SpecialCodeIndex::VMIN] = 1;
        raw.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(stdin(), OptionalActions::Drain, &raw)?;
        Ok(Some(Raw { before }))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that is gone needs no change.
        let _ = tcsetattr(stdin(), OptionalActions::Drain, &self.before);
    }
}

/// Rows and columns of the terminal, if standard input and output are one.
pub(super) fn size() -> Option<(u16, u16)> {
    if !isatty(stdin()) || !isatty(stdout()) {
        return None;
    }
    tcgetwinsize(stdout()).ok().map(|size| (size.ws_row, size.ws_col))
}

/// Sends standard input to the guest. At the end of input the guest's terminal is told so, as a user tells
/// it: behind a line that has no end this takes two ^D.
pub(super) fn send_input(mut to: impl Write) {
    let mut buffer = [0; 4096];
    let mut last = b'\n';
    while let Some(bytes) = read(stdin(), &mut buffer) {
        last = *bytes.last().unwrap_or(&last);
        if to.write_all(bytes).and_then(|()| to.flush()).is_err() {
            return;
        }
    }
    let end: &[u8] = if last == b'\n' { &[END_OF_FILE] } else { &[END_OF_FILE; 2] };
    let _ = to.write_all(end).and_then(|()| to.flush());
}

/// The bytes that are there, at least one; `None` at the end or on an error.
fn read<'a>(from: BorrowedFd<'_>, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    loop {
        match rustix::io::read(from, &mut *buffer) {
            Err(Errno::INTR) => {}
            Ok(0) | Err(_) => return None,
            Ok(count) => return Some(&buffer[..count]),
        }
    }
}
