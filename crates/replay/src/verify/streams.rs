//! What a program reads and writes while it is measured.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

/// The standard streams of this process, which the program inherits; dropping it restores them.
pub(super) struct Streams {
    input: OwnedFd,
    output: OwnedFd,
    error: OwnedFd,
}

impl Streams {
    /// Standard input is empty. What the program writes is dropped, or goes to standard error if it is to be shown.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn of_program(shown: bool) -> io::Result<Self> {
        io::stdout().flush()?;
        let own = |stream: &dyn AsFd| stream.as_fd().try_clone_to_owned();
        let streams =
            Self { input: own(&io::stdin())?, output: own(&io::stdout())?, error: own(&io::stderr())? };
        let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
        dup2_stdin(&null)?;
        if shown {
            dup2_stdout(&streams.error)?;
        } else {
            dup2_stdout(&null)?;
            dup2_stderr(&null)?;
        }
        Ok(streams)
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        let _ = dup2_stdin(&self.input);
        let _ = dup2_stdout(&self.output);
        let _ = dup2_stderr(&self.error);
    }
}
